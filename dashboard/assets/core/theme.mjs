// The theme: light, dark, or as the system has it.
import { by } from "./dom.mjs";

const CHOICES = ["system", "light", "dark"], NAMES = { system: "Auto", light: "Light", dark: "Dark" };
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme(choice) {
  const root = document.documentElement;
  root.dataset.choice = choice;
  root.dataset.theme = choice === "dark" || (choice === "system" && prefersDark.matches) ? "dark" : "light";
  if (!by("theme")) return;
  by("theme-word").textContent = NAMES[choice];
  by("theme").title = "Theme: " + choice;
}

export const showTheme = () => theme(document.documentElement.dataset.choice);
prefersDark.addEventListener("change", showTheme);
document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  const next = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.choice) + 1) % 3];
  try { localStorage.setItem("rollscope-theme", next); } catch (blocked) { /* private mode: lasts for this page */ }
  theme(next);
});
