// The frame of the dashboard: navigation, connection, keyboard, and the screen that the address names.
import { render } from "../vendor/vendor.mjs";
import { connection } from "./connection.mjs";
import { html } from "./html.mjs";
import { bindKeys, KeyHelp, keyHelp } from "./keys.mjs";
import { useRoute } from "./router.mjs";
import { useStore } from "./store.mjs";
import { chooseTheme, theme } from "./theme.mjs";
import { openQuestions } from "./questions.mjs";
import { Empty, Guard, Toasts } from "./ui/basics.mjs";
import { ClusterScreen } from "./screens/cluster.mjs";
import { CompareScreen } from "./screens/compare.mjs";
import { InboxScreen } from "./screens/inbox.mjs";
import { LoginScreen } from "./screens/login.mjs";
import { NewRunScreen } from "./screens/new-run.mjs";
import { RunsScreen } from "./screens/runs.mjs";
import { RunScreen } from "./screens/run.mjs";
import { SpendScreen } from "./screens/spend.mjs";

/** The screens by the first part of the path. @type {Record<string, (properties: {route: import("./router.mjs").Route}) => any>} */
const SCREENS = {
  runs: ({ route }) => (route.path[1] ? html`<${RunScreen} key=${route.path[1]} route=${route} />` : html`<${RunsScreen} route=${route} />`),
  new: ({ route }) => html`<${NewRunScreen} route=${route} />`,
  inbox: ({ route }) => html`<${InboxScreen} route=${route} />`,
  spend: ({ route }) => html`<${SpendScreen} route=${route} />`,
  cluster: ({ route }) => html`<${ClusterScreen} route=${route} />`,
  compare: ({ route }) => html`<${CompareScreen} route=${route} />`,
  login: () => html`<${LoginScreen} />`,
};

function Banner() {
  const { status, reason } = useStore(connection);
  if (status === "lost") {
    return html`<div class="banner" role="alert"><span class="live lost">Connection lost</span><span class="grow words">${reason}. What you see may be out of date; the page continues by itself.</span></div>`;
  }
  if (status === "recovered") return html`<div class="banner good" role="status"><span class="live">Connected again</span> Everything that happened meanwhile is shown.</div>`;
  return null;
}

/** The themes: the system's, dark and light. @type {Record<string, {next: string, sign: string}>} */
const THEMES = { "": { next: "dark", sign: "◐" }, dark: { next: "light", sign: "☾" }, light: { next: "", sign: "☀" } };

function ThemeButton() {
  const chosen = useStore(theme).chosen;
  const { next, sign } = THEMES[chosen] ?? THEMES[""];
  const name = chosen || "system";
  return html`<button type="button" class="button plain" title=${`Theme: ${name}`} aria-label=${`Theme: ${name}; change it`} onClick=${() => chooseTheme(next)}>${sign}</button>`;
}

/** @param {{current: string}} properties */
function TopBar({ current }) {
  const questions = useStore(openQuestions);
  const { status } = useStore(connection);
  const open = questions?.length ?? 0;
  const tab = (/** @type {string} */ id, /** @type {any} */ name) => html`<a href=${`/${id}`} aria-current=${current === id ? "page" : undefined}>${name}</a>`;
  return html`<header class="topbar">
    <a class="brand" href="/runs" aria-label="Millrace: runs"><svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true"><path d="M3 20c4 0 4-3 8.5-3s4.5 3 8.5 3 4.5-3 9-3M3 26c4 0 4-3 8.5-3s4.5 3 8.5 3 4.5-3 9-3M9 13V6l7 5.5L23 6v6" fill="none" stroke="var(--accent)" stroke-width="2.8" stroke-linejoin="round" stroke-linecap="round"/></svg><span>Millrace</span></a>
    <nav aria-label="Screens">
      ${tab("runs", "Runs")}
      ${tab("inbox", html`Inbox${open > 0 && html` <span class="count" aria-label=${`${open} open questions`}>${open}</span>`}`)}
      ${tab("spend", "Spend")}
      ${tab("cluster", "Cluster")}
    </nav>
    <div class="end">
      ${status !== "lost" && html`<span class="live wide-only" title="The page is connected to the cluster">Live</span>`}
      <a class="button primary" href="/new">New run</a>
      <${ThemeButton} />
      <button type="button" class="button plain wide-only" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick=${() => keyHelp.set(true)}>?</button>
    </div>
  </header>`;
}

function App() {
  const route = useRoute();
  const { status } = useStore(connection);
  const name = route.path[0] ?? "runs";
  const screen = SCREENS[name];
  if (status === "signed-out" || name === "login") return html`<main><${LoginScreen} /></main>`;
  return html`
    <a class="skip" href="#content">Skip to the content</a>
    <${TopBar} current=${name} />
    <${Banner} />
    <main id="content" tabIndex="-1">${screen ? html`<${Guard} key=${name}>${screen({ route })}<//>` : html`<${Empty} title="There is no such page">Nothing is at <code>${location.pathname}</code>.<br /><a class="button" href="/runs">Show the runs</a><//>`}</main>
    <${KeyHelp} />
    <${Toasts} />`;
}

bindKeys();
const root = document.getElementById("app");
if (root) render(html`<${App} />`, root);
performance.mark("millrace.rendered");
