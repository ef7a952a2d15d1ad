//! The screens: their addresses, the text that each must show, and the checks of each.

use std::path::PathBuf;

use millrace_tests::node::install_npm_packages;
use serde_json::json;

use super::browser::Browser;
use super::hostile::find_interpreted_text;

/// The checker of accessibility.
const AXE: &str = "axe-core@4.14.1";

/// A screen and the text that it shows once its data was read.
pub struct Screen {
    /// The name of its picture.
    pub name: &'static str,
    /// Its address.
    pub path: String,
    selector: &'static str,
    text: &'static str,
}

/// The runs that the screens show.
pub struct ShownRuns {
    /// A run with a report, files, answered questions and two attempts of a task.
    pub whole: String,
    /// The sequence of its first decision.
    pub first: u64,
    /// A run of which a task failed.
    pub failed: String,
    /// A run that waits for an answer.
    pub asking: String,
}

/// Returns all screens.
pub fn screens(runs: &ShownRuns) -> Vec<Screen> {
    let ShownRuns { whole, first, failed, asking } = runs;
    let screen = Screen::new;
    vec![
        screen("runs", "/".into(), "a.objective", "Publish the release notes"),
        screen("runs-search", "/runs?text=fails".into(), "a.objective", "One of them fails"),
        screen("runs-label", "/runs?label=team%3Dops".into(), ".chip", "team: ops"),
        screen("runs-session", "/runs?session=ops".into(), "td .chip.on", "session ops #1"),
        screen("new", "/new".into(), "h1", "Start a run"),
        screen("new-after", format!("/new?after={whole}"), "h1", "Follow up"),
        screen("inbox", "/inbox".into(), ".question", "An agent asks"),
        screen("inbox-history", "/inbox?show=history".into(), ".question", "approved"),
        screen("spend", "/spend".into(), "h1", "tokens"),
        screen("cluster", "/cluster".into(), "h2", "Queues"),
        screen(
            "compare-attempts",
            format!("/compare?left={whole}/find/1&right={whole}/find/2"),
            "h2",
            "Prompt as sent",
        ),
        screen("compare-runs", format!("/compare?left={whole}&right={failed}"), "main", "report"),
        screen("graph", format!("/runs/{whole}"), ".node", "report"),
        screen("graph-task", format!("/runs/{whole}?task=find"), "aside", "Attempt 2"),
        screen("graph-past", format!("/runs/{whole}?at={first}"), ".slider", "As of decision 1"),
        screen("failed-task", format!("/runs/{failed}?task=c"), "aside", "Attempt 1"),
        screen("tasks", format!("/runs/{whole}/tasks"), ".task-line", "find"),
        screen("timeline", format!("/runs/{whole}/timeline"), ".time-line", "find"),
        screen("journal", format!("/runs/{whole}/journal?task=find"), ".entry", "search_documents"),
        screen("journal-planner", format!("/runs/{whole}/journal"), ".entry", "img"),
        screen("report", format!("/runs/{whole}/report"), ".report", "quotation"),
        screen("report-source", format!("/runs/{whole}/report?source=1"), ".lines .quoted", "img"),
        screen("run-spend", format!("/runs/{whole}/spend"), "h2", "Budget"),
        screen("log", format!("/runs/{whole}/log"), ".log-line", "run ended"),
        screen("log-decision", format!("/runs/{whole}/log?decision={first}"), ".decision", "run started"),
        screen("files", format!("/runs/{whole}/files"), ".file-line", "releases"),
        screen("no-files", format!("/runs/{failed}/files"), "h2", "No files"),
        screen("questions", format!("/runs/{whole}/questions"), ".question", "answered"),
        screen("open-question", format!("/runs/{asking}/questions"), ".question", "An agent asks"),
        screen("no-such-run", "/runs/no-such-run".into(), "h3", "There is no such run"),
        screen("login", "/login".into(), "h1", "Sign in"),
    ]
}

impl Screen {
    /// A screen that shows a text in an element that a selector names.
    pub fn new(name: &'static str, path: String, selector: &'static str, text: &'static str) -> Self {
        Self { name, path, selector, text }
    }

    /// Opens it.
    pub async fn open(&self, browser: &Browser) {
        browser.open(&self.path).await;
        browser.wait_for_text(self.selector, self.text).await;
        browser.wait_until_read().await;
    }

    /// Returns what is wrong with it: it is wider than the window, text of it was interpreted, or the console has errors.
    pub async fn find_faults(&self, browser: &Browser) -> Vec<String> {
        let mut faults = find_interpreted_text(browser).await;
        faults.extend(find_excess_width(browser).await);
        // The browser reports the status of the one request that must fail.
        let errors = browser.console_errors().await.into_iter();
        faults.extend(errors.filter(|error| !error.contains("no-such-run")));
        faults.iter().map(|fault| format!("{}: {fault}", self.name)).collect()
    }
}

/// Returns a fault if the page is wider than the window.
async fn find_excess_width(browser: &Browser) -> Option<String> {
    let script = "const excess = document.documentElement.scrollWidth - innerWidth; if (excess <= 0) return null; \
                  const wide = [...document.querySelectorAll('#app *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1); \
                  return `${excess} pixels wider than ${innerWidth}: ${wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 120))}`;";
    browser.evaluate(script).await.as_str().map(str::to_owned)
}

/// A checker of accessibility; `None` with a message where it can't be installed.
pub fn load_axe() -> Option<String> {
    match install_npm_packages(&[AXE]) {
        Ok(folder) => Some(std::fs::read_to_string(folder.join("node_modules/axe-core/axe.min.js")).unwrap()),
        Err(reason) => {
            println!("skipped the check of accessibility: {reason}");
            None
        }
    }
}

/// Returns the serious findings of the checker about the page that is open, in both colour schemes.
pub async fn find_barriers(browser: &Browser, axe: &str) -> Vec<String> {
    // Not as a script element, which the content security policy refuses.
    browser.command("Runtime.evaluate", json!({ "expression": axe })).await;
    let mut barriers = Vec::new();
    // Colours are all that differs between the schemes.
    for (scheme, rules) in [("light", json!(null)), ("dark", json!(["color-contrast", "link-in-text-block"]))]
    {
        browser.prefer_scheme(scheme).await;
        let run = "const done = arguments[arguments.length - 1]; axe.run(document, { resultTypes: ['violations'], ...(arguments[0] ? { runOnly: arguments[0] } : {}) }).then(\
                   ({ violations }) => done(violations.filter((one) => ['serious', 'critical'].includes(one.impact)).flatMap(\
                   (one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.html.slice(0, 160)} ${node.failureSummary.replace(/\\s+/g, ' ').slice(0, 300)}`))), (error) => done([String(error)]));";
        let found = browser.client.execute_async(run, vec![rules]).await.unwrap();
        let found = found.as_array().cloned().unwrap_or_default();
        barriers.extend(found.iter().map(|one| format!("{scheme}: {}", one.as_str().unwrap_or_default())));
    }
    browser.prefer_scheme("light").await;
    barriers
}

/// Returns what is wrong with the screens in a narrow window.
pub async fn find_narrow_faults(browser: &Browser, screens: &[Screen]) -> Vec<String> {
    let mut faults = Vec::new();
    browser.set_size(420, 900).await;
    for screen in screens {
        screen.open(browser).await;
        faults.extend(find_excess_width(browser).await.map(|fault| format!("{}: {fault}", screen.name)));
    }
    faults
}

/// Keeps pictures of all screens in the folder that `MILLRACE_SCREENSHOTS` names: light and dark, wide and narrow.
pub async fn keep_pictures(browser: &Browser, screens: &[Screen]) {
    let Some(folder) = std::env::var_os("MILLRACE_SCREENSHOTS").map(PathBuf::from) else { return };
    for screen in screens {
        for width in [1400, 420] {
            browser.set_size(width, 900).await;
            screen.open(browser).await;
            for scheme in ["light", "dark"] {
                browser.prefer_scheme(scheme).await;
                browser.keep_picture(&folder, &format!("{}-{width}-{scheme}", screen.name)).await;
            }
        }
    }
}
