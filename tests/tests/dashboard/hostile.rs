//! A run whose models, tools, documents and users write hostile text into every field that they can fill.

use millrace_tests::hostile::{CONTROLS, MARKDOWN};
use millrace_tests::wait_for_value;
use serde_json::json;

use super::browser::{Browser, TIMEOUT};
use super::local::LocalCluster;
use crate::gateway::http::Request;

/// HTML that runs a script if a page interprets it, text that acts on terminals and on the writing direction, links that run
/// scripts, and a word that is wider than any window.
pub fn hostile_text() -> String {
    let word = "w".repeat(3_000);
    format!(
        "<img src=x onerror=window.hacked=1><script>window.hacked=1</script><iframe srcdoc='<script>parent.hacked=1</script>'></iframe> \
         [link](javascript:window.hacked=1) ![image](data:text/html,hacked) {CONTROLS} {MARKDOWN} {word}"
    )
}

/// The name of the document and of the file.
const NAME: &str = "<img src=x onerror=window.hacked=1>.md";

/// The script of the model, as JSON, which is YAML too.
pub fn hostile_script() -> String {
    let text = hostile_text();
    let task = |id: &str, capability: &str, after: &[&str]| json!({ "id": id, "objective": text, "capability": capability, "depends_on": after, "final": id == "report" });
    let tasks = [
        task("ask", "publisher", &[]),
        task("find", "research", &[]),
        task("report", "producer", &["ask", "find"]),
    ];
    let verdict = |passed: bool| {
        json!({ "answer": { "passed": passed, "reasoning": text, "feedback": text,
            "criteria": [{ "criterion": text, "met": passed, "gap": text }] } })
    };
    let option = format!("{NAME} {CONTROLS}");
    let report = format!(
        "# {text}\n\n{text} [1].\n\n| {text} | b |\n|---|---|\n| c | {text} |\n\n```html\n{text}\n```\n\n> {text}\n\n- {text}\n"
    );
    let script = json!({ "rules": [
        { "when": { "answer": "plan" }, "reply": { "answer": { "reasoning": text, "tasks": tasks } } },
        { "when": { "answer": "findings" }, "turns": [
            { "text": text, "reasoning": text, "calls": [{ "search_documents": { "query": text } }, { "read_document": { "path": text } }] },
            { "answer": { "quotations": [{ "document": NAME, "first_line": 1, "last_line": 1 }], "output": format!("{text} [1]."), "summary": text } },
        ] },
        { "when": { "answer": "report" }, "reply": { "answer": { "summary": text, "output": report } } },
        { "when": { "answer": "verdict" }, "times": 1, "reply": verdict(false) },
        { "when": { "answer": "verdict" }, "reply": verdict(true) },
        { "turns": [
            { "text": text, "calls": [{ "ask_user": { "question": text, "options": [option, "other"] } }] },
            { "calls": [{ "write_file": { "file_path": format!("/releases/{NAME}"), "content": text } }] },
            { "text": text },
        ] },
    ] });
    // YAML allows control characters as escapes only.
    let escape = |character: char| match character.is_ascii() && character != '\u{7f}' {
        true => character.to_string(),
        false => character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    script.to_string().chars().map(escape).collect()
}

/// Runs it to its end, with hostile answers and commands of users, and returns its id.
pub async fn run_hostile(cluster: &LocalCluster) -> String {
    let text = hostile_text();
    let body = json!({ "objective": text, "labels": { "team": "<b>search</b>" }, "session": "ops" });
    let parts = format!(
        "--cut\r\nContent-Disposition: form-data; name=\"run\"\r\nContent-Type: application/json\r\n\r\n{body}\r\n\
         --cut\r\nContent-Disposition: form-data; name=\"documents\"; filename=\"{NAME}\"\r\n\r\n{text}\r\n--cut--\r\n"
    );
    let request =
        Request::new("POST", "/api/v1/runs").body("multipart/form-data; boundary=cut", parts.into_bytes());
    let answer = request.send(cluster.address).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let run = answer.json()["run"].as_str().unwrap().to_owned();
    let question = cluster.wait_for_question(&run, "input").await;
    cluster.post(&format!("/runs/{run}/message"), &json!({ "text": text })).await;
    cluster.post(&format!("/questions/{question}"), &json!({ "answer": "answer", "value": text })).await;
    let approval = cluster.wait_for_question(&run, "approval").await;
    // The run waits for this answer, so that a task can be repeated with the feedback of a person.
    wait_for_value(TIMEOUT, "the findings", async || {
        let list = cluster.get(&format!("/runs/{run}/tasks/find")).await;
        (list["tasks"][0]["state"] == "completed").then_some(())
    })
    .await;
    cluster.post(&format!("/runs/{run}/tasks/find/retry"), &json!({ "feedback": text })).await;
    cluster.post(&format!("/questions/{approval}"), &json!({ "answer": "approve" })).await;
    cluster.wait_for_end(&run).await;
    run
}

/// Returns what a page made of hostile text other than text: scripts that ran, elements, control characters.
pub async fn find_interpreted_text(browser: &Browser) -> Vec<String> {
    let script = r##"
        const wrong = [];
        if (window.hacked !== undefined) wrong.push("a script ran");
        for (const one of document.querySelectorAll("#app img, #app script, #app iframe, a[href^='javascript:']")) wrong.push(one.outerHTML.slice(0, 200));
        const controls = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\u{e0000}-\u{e007f}]/u;
        const texts = document.createTreeWalker(document.getElementById("app"), NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
          const text = texts.currentNode.data;
          const at = text.search(controls);
          if (at >= 0) wrong.push(`a control character in ${JSON.stringify(text.slice(Math.max(0, at - 40), at + 5))}`);
        }
        return wrong;"##;
    let wrong = browser.evaluate(script).await;
    let wrong = wrong.as_array().cloned().unwrap_or_default();
    wrong.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
}
