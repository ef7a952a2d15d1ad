//! Hostile text in every field that others fill, and every command that shows it.

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{EndReason, PlanningMode};
use millrace_protocol::result::CapabilityDescription;
use millrace_runtime::work::registry;
use millrace_tests::hostile::{CONTROLS, assert_safe_output, hostile_text};
use millrace_tests::testbed::TestBed;
use serde_json::Value;

use super::end_reason;
use super::planning::planned_submission;

/// An agent that writes files.
pub const SCRIBE: &str =
    "name: scribe\ndescription: Writes a file.\ninstructions: Write it.\ntools: [write_file, think]\n";
/// A program whose output is hostile.
pub const SHOUT: &str = "kind: command\nname: shout\ndescription: Prints what it likes.\n\
                         command: [sh, -c, 'cat > /dev/null; printf \"out \\033]0;t\\007\\302\\233 ![image](http://evil.example)\"; \
                         printf \"err \\033]0;t\\007\" >&2']\neffect: pure\n";

/// A text in double quotes of YAML, which allows no control characters.
fn yaml_string(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        ' '..='~' => c.to_string(),
        _ => format!("\\U{:08X}", u32::from(c)),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

pub async fn hostile_text_reaches_no_output(testbed: &TestBed) {
    let hostile = yaml_string(&hostile_text("hostile"));
    let rules = format!(
        "
- when: {{answer: plan}}
  reply:
    answer:
      reasoning: {hostile}
      tasks:
      - {{id: noise, objective: {hostile}, capability: shout}}
      - {{id: text, objective: {hostile}, capability: scribe, depends_on: [noise], final: true}}
- turns:
  - {{text: {hostile}, calls: [think: {{thought: {hostile}}}, write_file: {{file_path: /note.txt, content: {hostile}}}, write_file: {{file_path: {hostile}, content: x}}]}}
  - {{text: {hostile}}}
"
    );
    let mut submission = planned_submission(testbed, "hostile", PlanningMode::Llm, Vec::new(), &rules);
    submission.objective = hostile_text("objective");
    let described =
        CapabilityDescription::new(Capability::new("described").unwrap(), hostile_text("description"));
    registry::register_capability(&testbed.bus, &described).await.unwrap();
    let run = testbed.submit_run("hostile", &submission).await;
    let name = run.id.as_str().to_owned();
    let message = hostile_text("message");
    let run_command = |arguments: &[&str]| {
        let output = testbed.cluster.millrace_command().args(arguments).output().unwrap();
        assert_safe_output(&format!("the output of {arguments:?}"), &output.stdout);
        assert_safe_output(&format!("the errors of {arguments:?}"), &output.stderr);
        output
    };
    run_command(&["message", &name, &message]);
    let history = run.wait_for_end().await;
    assert_eq!(
        end_reason(history.folded_plan()),
        EndReason::Completed,
        "{:?}",
        history.folded_plan().run.end
    );

    for command in [
        &["show", &name][..],
        &["show", &name, "text"],
        &["show", &name, "text", "--full"],
        &["show", &name, "noise", "--full"],
        &["show", &name, "@planner", "--full"],
        &["replay", &name, "--log"],
        &["files", &name],
        &["list"],
        &["status"],
        &["workers"],
        &["capabilities"],
        &["watch", &name],
    ] {
        let output = run_command(command);
        assert!(output.status.success() && !output.stdout.is_empty(), "{command:?}: {output:?}");
    }
    for command in [
        &["show", &name, "--json"][..],
        &["show", &name, "text", "--json"],
        &["show", &name, "@planner", "--json"],
        &["replay", &name, "--json"],
        &["replay", &name, "--log", "--json"],
        &["files", &name, "--json"],
        &["files", &name, "note.txt", "--json"],
        &["list", "--json"],
        &["status", "--json"],
        &["capabilities", "--json"],
        &["watch", &name, "--json"],
    ] {
        let output = run_command(command);
        assert!(output.status.success(), "{command:?}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let values: Vec<Value> =
            serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
        assert!(!values.is_empty(), "{command:?}");
    }
    // JSON keeps every character, as an escape.
    let shown = run_command(&["show", &name, "--json"]);
    let document: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(document["objective"], submission.objective);
    assert!(document["result"]["output"].as_str().unwrap().contains(CONTROLS), "{document:#}");

    let printed = run_command(&["watch", &name]);
    let report = String::from_utf8(printed.stdout).unwrap();
    assert!(report.contains("hostile") && report.contains("!\\[image]"), "{report}");
    for line in report.lines() {
        assert!(!line.contains("![image]") && !line.contains(" <img"), "{line}");
    }

    // Errors quote what they refuse.
    for command in [
        &["show", &message][..],
        &["show", &name, &message],
        &["files", &name, &message],
        &["files", &name, &format!("no{CONTROLS}.txt")],
        &["cancel", &name, "--task", &message],
        &["edit", &name, &message, "--objective", &message],
        &[&message],
        &["list", &format!("--{message}")],
        &["submit", "x", "--docs", &message],
        &["submit", "x", "--plan", &message],
        &["submit", "x", "--model", &message],
        &["submit", "x", "--budget", &message],
        &["limits", "set", &message, "--requests", &message],
    ] {
        let output = run_command(command);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{command:?}: {output:?}");
    }
}
