// The core components that the shell has: Dash's own script has thirty of them, in half a megabyte. They draw nothing.
// `window.React` comes with Dash's scripts.

/** Holds data between callbacks. */
const Store = () => null;

/** @param {{ interval: number, setProps: (changed: object) => void }} props */
function Interval({ interval, setProps }) {
  window.React.useEffect(() => {
    let n_intervals = 0;
    const timer = setInterval(() => setProps({ n_intervals: ++n_intervals }), interval);
    return () => clearInterval(timer);
  }, []);
  return null;
}

/** Reports the address, and its changes by history. @param {{ setProps: (changed: object) => void }} props */
function Location({ setProps }) {
  window.React.useEffect(() => {
    const told = {};
    const tell = () => {
      const { pathname, search, hash, href } = location, now = { pathname, search, hash, href };
      const changed = Object.entries(now).filter(([name, value]) => told[name] !== value);
      if (changed.length) setProps(Object.fromEntries(changed));
      Object.assign(told, now);
    };
    tell();
    window.addEventListener("popstate", tell);
    return () => window.removeEventListener("popstate", tell);
  }, []);
  return null;
}

export const components = { Store, Interval, Location };
