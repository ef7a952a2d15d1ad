//! `millrace eval` with files that others publish: questions in the format of SQuAD, and claims with labels.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::user::{CliUser, CommandOutput};

const QUESTIONS: &str = r#"{"version": "v2.0", "data": [
    {"title": "Osterby_Mill", "paragraphs": [
        {"context": "The mill at Osterby was built in 1811 by Anton Berg. It has four sails of oak.", "qas": [
            {"id": "year", "question": "When was the mill at Osterby built?", "answers": [{"text": "1811", "answer_start": 33}]},
            {"id": "sails", "question": "Of what are the sails of the mill at Osterby?", "answers": [{"text": "oak", "answer_start": 75}]},
            {"id": "price", "question": "Which ticket does Zuzana sell?", "answers": [], "is_impossible": true}]}]},
    {"title": "Soup", "paragraphs": [{"context": "Boil the water first. Then add the salt.", "qas": [
        {"id": "salt", "question": "What is added after the water boils?", "answers": [{"text": "the salt", "answer_start": 31}]}]}]}]}"#;

/// A claim with its evidence and its label, and the probability that the scripted verifier gives.
const CLAIMS: [(&str, &str, &str, f64); 6] = [
    ("The mill was put up before the war.", "The mill was built in 1811.", "supported", 0.8),
    ("Berg owned the mill and a boat.", "Berg owned the mill.", "partially_supported", 0.2),
    ("The sails are made of steel.", "It has four sails of oak.", "not_supported", 0.1),
    ("The mill was built in 1811.", "The mill was built in 1811.\nIt stands.", "supported", 0.9),
    ("The mill was built in 1911.", "The mill was built in 1811.", "not_supported", 0.1),
    ("- [oak] is the wood of its sails", "It has four sails of oak.", "supported", 0.7),
];

fn run(user: &CliUser, arguments: &[&str]) -> CommandOutput {
    let mut command = user.millrace_command(arguments);
    command.env("XDG_CACHE_HOME", user.path_of("cache"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput {
        command: arguments.join(" "),
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn json_lines(output: &CommandOutput, kind: &str) -> Vec<Value> {
    let lines = output.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == kind).collect()
}

/// A rule of a script that answers a claim with a probability.
fn rule(claim: &str, probability: f64) -> Value {
    let word = if probability > 0.5 { "Yes" } else { "No" };
    let first_token = json!({"Yes": probability, "No": 1.0 - probability});
    let usage = json!({"input_tokens": 40, "output_tokens": 1});
    let reply = json!({"text": word, "first_token": first_token, "usage": usage});
    json!({"when": {"last": format!("Claim: {claim}")}, "reply": reply})
}

/// Writes the claims and a verifier that knows the labels, and the answers of the probe.
fn write_claims(user: &CliUser) {
    let line = |(claim, evidence, label, _): &(&str, &str, &str, f64)| {
        json!({"claim": claim, "evidence": evidence, "label": label}).to_string()
    };
    user.write_file("claims.jsonl", &CLAIMS.iter().map(line).collect::<Vec<_>>().join("\n"));
    let probe: Vec<Value> =
        serde_json::from_str(include_str!("../../crates/verification/data/probe.json")).unwrap();
    let known = probe.iter().flat_map(|pair| {
        [("true", 0.9), ("false", 0.1)].map(|(name, yes)| rule(pair[name].as_str().unwrap(), yes))
    });
    let own = CLAIMS.iter().map(|(claim, _, _, yes)| rule(claim.trim_start_matches("- "), *yes));
    // A direct request has the claim with its markup.
    let item = rule(CLAIMS[5].0, CLAIMS[5].3);
    let rules: Vec<Value> = own.chain([item]).chain(known).collect();
    let script = json!({"ability": "small", "ledger": "ledger.jsonl", "rules": rules});
    user.write_file("verifier.yaml", &script.to_string());
}

#[test]
fn questions_are_answered_from_the_articles_of_their_file() {
    let user = CliUser::new();
    user.write_file("mill.json", QUESTIONS);
    let arguments = ["eval", "mill.json", "--model", "builtin:extractive", "--json"];
    let measured = run(&user, &arguments);
    measured.assert_exit_code(0);
    let samples = json_lines(&measured, "evaluation_sample");
    let kinds: BTreeMap<&str, &Value> =
        samples.iter().map(|one| (one["objective"].as_str().unwrap(), &one["answer_kind"])).collect();
    assert_eq!(kinds["price"], "nothing_found", "{samples:#?}");
    let sums = &json_lines(&measured, "evaluation_configuration")[0];
    for (field, expected) in [("facts_expected", 3), ("facts_found", 3), ("not_answered", 1)] {
        assert_eq!(sums[field], expected, "{field}: {sums:#}");
    }
    assert_eq!((&sums["invented_figures"], &sums["answers_missed"]), (&0.into(), &0.into()));
    let again = run(&user, &["eval", "mill.json", "--model", "builtin:extractive"]);
    again.assert_exit_code(0).assert_stderr_contains("4 of 4 samples (run) are in the results already");
    assert!(again.out.contains("3 of 3 (100%, 44–100%)"), "{}", again.out);

    let arguments = [&arguments[..], &["--without-article", "--only", "year,sails"]].concat();
    let without = run(&user, &arguments);
    without.assert_exit_code(0);
    assert!(!without.err.contains("already"), "other documents are another sample: {}", without.err);
    let sums = &json_lines(&without, "evaluation_configuration")[0];
    assert_eq!((&sums["unanswerable"], &sums["facts_expected"]), (&2.into(), &0.into()), "{sums:#}");
    assert!(!without.out.contains("1811"), "the article is not there: {}", without.out);
}

#[test]
fn perfect_verifier_recognises_all_claims_with_one_request_each() {
    let user = CliUser::new();
    write_claims(&user);
    let arguments = ["eval", "claims.jsonl", "--model", "verifier=script:verifier.yaml", "--json"];
    let part = run(&user, &[&arguments[..], &["--only", "line-1,line-3"]].concat());
    part.assert_exit_code(0).assert_stderr_contains("the probe of script:verifier.yaml took 32 calls");
    let all = run(&user, &[&arguments[..], &["--direct"]].concat());
    all.assert_exit_code(0)
        .assert_stderr_contains("2 of 6 samples (verification) are in the results already");
    let claims = json_lines(&all, "evaluation_claims");
    assert_eq!((&claims[0]["method"], &claims[1]["method"]), (&"verification".into(), &"direct".into()));
    for one in &claims {
        assert_eq!(one["balanced_accuracy"], 1.0, "{:#?}", json_lines(&all, "evaluation_claim"));
        assert_eq!(one["area_under_curve"], 1.0, "{one:#}");
        assert_eq!(one["supported"], json!({"part": 3, "whole": 3}));
    }
    let right = |part: u32| json!({"part": part, "whole": part});
    let deciders = json!([
        {"decided_by": "quotation", "right": right(1)},
        {"decided_by": "figure", "right": right(1)},
        {"decided_by": "model", "right": right(4)},
    ]);
    assert_eq!(claims[0]["deciders"], deciders, "{:#}", claims[0]);
    assert_eq!(
        (&claims[0]["usage"]["model_calls"], &claims[1]["usage"]["model_calls"]),
        (&4.into(), &6.into())
    );
    // The probe, four claims, and six claims once more directly.
    assert_eq!(user.read_file("ledger.jsonl").lines().count(), 32 + 4 + 6);
    let schema: Value = serde_json::from_str(&run(&user, &["schema", "eval"]).out).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for line in all.out.lines() {
        assert!(schema.is_valid(&serde_json::from_str(line).unwrap()), "{line}");
    }
    let table = run(&user, &["eval", "claims.jsonl", "--model", "verifier=script:verifier.yaml", "--direct"]);
    table.assert_exit_code(0);
    assert!(table.out.contains("believed (100% right"), "{}", table.out);
    assert_eq!(user.read_file("ledger.jsonl").lines().count(), 42, "nothing is asked again");
}

#[test]
fn verifier_without_skill_judges_nothing_and_the_table_says_so() {
    let user = CliUser::new();
    write_claims(&user);
    user.write_file("verifier.yaml", r#"{ability: small, rules: [{reply: {text: "No"}}]}"#);
    let output = run(&user, &["eval", "claims.jsonl", "--model", "verifier=script:verifier.yaml"]);
    output.assert_exit_code(0).assert_stderr_contains("told 50% of claims with known answers right");
    assert!(output.out.contains("not believed (50% right)"), "{}", output.out);
    assert!(output.out.contains("2 not verified"), "{}", output.out);
}

#[test]
fn files_and_options_that_do_not_fit_are_refused_with_a_remedy() {
    let user = CliUser::new();
    write_claims(&user);
    user.write_file("mill.json", QUESTIONS);
    user.write_file("empty.jsonl", "");
    user.write_file("bad.jsonl", "{\"claim\": \"a\", \"evidence\": \"b\", \"label\": \"maybe\"}\n");
    user.write_file("broken.json", "{\"data\": [}");
    for (arguments, expected) in [
        (&["empty.jsonl"][..], "empty.jsonl is empty; it should have in each line an object"),
        (&["bad.jsonl"], "bad.jsonl:1: the label \"maybe\" is unknown; a label is one of"),
        (&["broken.json"], "broken.json:1:11: expected value; a question file has"),
        (&["missing.json"], "cannot read missing.json: "),
        (
            &["mill.json", "claims.jsonl"],
            "only question files (.json) or claim files (.jsonl) can be evaluated together",
        ),
        (&["mill.json", "--direct"], "--direct is for evaluations of claims in a .jsonl file; omit it"),
        (&["claims.jsonl", "--ceiling"], "--ceiling is for evaluations of objectives and questions; omit it"),
        (&["claims.jsonl", "--only", "line-9"], "there is no claim \"line-9\" in the file"),
    ] {
        let refused = run(&user, &[&["eval"], arguments].concat());
        refused.assert_exit_code(2).assert_stderr_contains(expected);
    }
    let more = ["eval", "claims.jsonl", "--limit", "100", "--model", "verifier=none"];
    let more = run(&user, &more);
    more.assert_exit_code(0)
        .assert_stderr_contains("--limit 100: there are only 6, and all of them are measured");
}
