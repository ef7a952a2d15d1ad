// The theme: that of the system, or the one that the user chose.
import { Store } from "./store.mjs";

const system = matchMedia("(prefers-color-scheme: dark)");

/** What was chosen (empty for the system's theme), and what is shown. */
export const theme = new Store(read());

function read() {
  const chosen = document.documentElement.dataset.theme ?? "";
  return { chosen, isDark: chosen ? chosen === "dark" : system.matches };
}

/** @param {string} chosen */
export function chooseTheme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("millrace.theme", chosen);
  } catch {
    // Storage is switched off: the choice lasts as long as the page.
  }
  theme.set(read());
}

system.addEventListener("change", () => theme.set(read()));
