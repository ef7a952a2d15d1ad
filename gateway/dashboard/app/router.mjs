// The address of the page is its state: path and query name everything that is shown.
import { Store, useStore } from "./store.mjs";

/**
 * @typedef {object} Route
 * @property {string[]} path The parts of the path, decoded.
 * @property {Record<string, string>} query
 */

/** @returns {Route} */
function readRoute() {
  const decode = (/** @type {string} */ part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  const path = location.pathname.split("/").filter(Boolean).map(decode);
  return { path, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

const route = new Store(readRoute());

/** @returns {Route} */
export function useRoute() {
  return useStore(route);
}

/** @returns {Route} */
export function currentRoute() {
  return route.value;
}

/**
 * Returns the address of a screen. Values that are empty are left out.
 * @param {string[]} path
 * @param {Record<string, string | number | boolean | null | undefined>} [query]
 */
export function address(path, query = {}) {
  const entries = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const search = new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
  return `/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/**
 * Returns the address of the current screen with a changed query.
 * @param {Record<string, string | number | boolean | null | undefined>} changes
 */
export function withQuery(changes) {
  const { path, query } = route.value;
  return address(path, { ...query, ...changes });
}

/**
 * Goes to an address of the dashboard.
 * @param {string} url
 * @param {{replace?: boolean}} [options]
 */
export function go(url, { replace = false } = {}) {
  if (url === location.pathname + location.search) return;
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  const before = route.value;
  route.set(readRoute());
  if (before.path.join("/") !== route.value.path.join("/")) {
    scrollTo(0, 0);
    document.querySelector("main")?.focus({ preventScroll: true });
  }
}

/**
 * Changes the query of the current screen.
 * @param {Record<string, string | number | boolean | null | undefined>} changes
 * @param {{replace?: boolean}} [options]
 */
export function setQuery(changes, options) {
  go(withQuery(changes), options);
}

addEventListener("popstate", () => route.set(readRoute()));
// Links within the dashboard change the page without loading it again.
document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = /** @type {Element} */ (event.target).closest?.("a[href]");
  if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (/^\/(api|docs|assets)(\/|$)/.test(link.pathname)) return;
  if (link.hash && link.pathname === location.pathname && link.search === location.search) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
