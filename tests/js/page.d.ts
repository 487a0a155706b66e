// What the dashboard's modules expect of a page, for `tsc` (`make check`): Dash, Plotly, and properties that they set on
// elements. An element that a selector finds has the properties of the element that the page has there.

interface Window {
  dash_clientside: any;
  DashRenderer: any;
  Plotly: any;
}

interface EventTarget {
  closest(selectors: string): any;
}

interface Node {
  contains(other: EventTarget | null): boolean;
}

interface ParentNode {
  hidden: any;
}

interface Element {
  readonly dataset: DOMStringMap;
  style: CSSStyleDeclaration;
  hidden: any;
  disabled: boolean;
  open: boolean;
  value: any;
  rows: any;
  focus(options?: FocusOptions): void;
  // Of a chart: Plotly's figure; of a drawing: what is drawn, and where.
  data: any;
  layout: any;
  _fullLayout: any;
  look: any;
  looked: boolean;
  of: any;
  mark: string;
  wide: number;
  stale: boolean;
  bound: boolean;
  later: number;
}

interface HTMLElement {
  href: string;
}
