//! A run whose report has statements of each verdict: on the terminal, and in the dashboard.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::browser::Browser;
use super::local::{LocalCluster, root};

/// The verdicts on the statements of its report, in order.
pub const VERDICTS: [&str; 8] = [
    "supported",
    "supported",
    "partly",
    "contradicted",
    "unsupported",
    "unverified",
    "supported",
    "unsupported",
];

/// The report as it is printed, up to the name of the model.
const PRINTED: &str = "\
## The kiln

The kiln at Osterby fires at 1,240 °C [S1]. It takes **300 tiles** in `nine` layers [S1]. Visitors may enter the hall in the
afternoon [S1].[^v1] The burner can stay lit while nobody is there.[^v2]

- It was built in 1913 [S1].[^v3]
- Die Öfen 🔥 werden von der *Gemeinde* bezahlt [S1].[^v4]

| day | opens |
|---|---|
| Monday | 9:00 [S1] |
| Sunday | 11:30 [S1][^v5] |

[^v1]: supported in part (model MODEL): The line allows it only if a guide is present.
[^v2]: contradicted (model MODEL): The burner must never be left alone.
[^v3]: not supported: No source has “1913”.
[^v4]: not verified: The model gave no verdict.
[^v5]: not supported: No source has “11:30”.
";

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures/verdicts").join(name)
}

/// The models of the run.
pub fn models() -> [String; 2] {
    let script = |name| format!("script:{}", fixture(name).display());
    [script("model.yaml"), format!("verifier={}", script("verifier.yaml"))]
}

/// Runs it from the command line, checks what is printed, and returns its id.
pub async fn run_on_terminal(cluster: &LocalCluster) -> String {
    let documents = ["kiln.md", "rules.md"].map(|name| fixture(name).display().to_string());
    let question = "What is known of the kiln?";
    let printed = cluster.run(&["run", question, "--docs", &documents[0], "--docs", &documents[1]]);
    let model = format!("script:{}", fixture("verifier.yaml").display());
    let report = printed.split("\n## Sources").next().unwrap_or_default();
    assert_eq!(report.replace(&model, "MODEL"), PRINTED);
    let list = cluster.get("/runs?limit=1").await;
    list["runs"][0]["run"].as_str().unwrap().to_owned()
}

/// Runs it once more without the statements that the sources refute, for somebody who demands more verified ones than it has.
pub fn run_without_refuted_statements(cluster: &LocalCluster) {
    let documents = ["kiln.md", "rules.md"].map(|name| fixture(name).display().to_string());
    let policy = ["--verification", "remove", "--min-verified", "90%"];
    let run = ["run", "What is known of the kiln?", "--docs", &documents[0], "--docs", &documents[1]];
    let (printed, notes) = cluster.run_to_code(&[&run[..], &policy[..]].concat(), 3);
    assert!(
        !printed.contains("1913") && !printed.contains("burner") && !printed.contains("Sunday"),
        "{printed}"
    );
    assert!(
        printed.contains("| Monday | 9:00 [S1] |") && printed.contains("afternoon [S1].[^v1]"),
        "{printed}"
    );
    assert!(notes.contains("3 removed; --min-verified asks for 90%"), "{notes}");
    assert!(
        notes.contains("removed, not supported: “It was built in 1913.” No source has “1913”."),
        "{notes}"
    );
}

/// Moves the mouse to the first element that a selector names.
pub async fn point_at(browser: &Browser, selector: &str) {
    let script = "const one = document.querySelector(arguments[0]); one.scrollIntoView({ block: 'center' }); \
                  const { left, top, height } = one.getClientRects()[0]; return [left + 4, top + height / 2];";
    let place = browser.client.execute(script, vec![json!(selector)]).await.unwrap();
    let event = json!({ "type": "mouseMoved", "x": place[0], "y": place[1] });
    browser.command("Input.dispatchMouseEvent", event).await;
}

/// The look of the first statement of each verdict: its underline, its colour, and the shape of its sign.
pub async fn looks(browser: &Browser) -> Vec<[String; 3]> {
    let script = "return ['supported', 'partly', 'contradicted', 'unsupported', 'unverified'].map((verdict) => { \
                  const style = getComputedStyle(document.querySelector(`span.statement.is-${verdict}`)); \
                  const shape = document.querySelector(`.sign[data-verdict=${verdict}] path`).getAttribute('d'); \
                  return [style.textDecorationStyle + style.textDecorationThickness, style.textDecorationColor, shape]; });";
    serde_json::from_value(browser.evaluate(script).await).unwrap()
}

/// The words of each statement as they are shown, its citations and its sign left out.
pub async fn shown_statements(browser: &Browser) -> Vec<Value> {
    let script = "const texts = []; for (const one of document.querySelectorAll('.statement[data-statement]')) { \
                  const copy = one.cloneNode(true); copy.querySelectorAll('.citation, .sign').forEach((inner) => inner.remove()); \
                  texts[one.dataset.statement] = (texts[one.dataset.statement] ?? '') + copy.textContent.replace(/\\s+/g, ' '); } return texts;";
    browser.evaluate(script).await.as_array().cloned().unwrap_or_default()
}
