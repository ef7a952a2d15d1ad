//! The verifier with sources in memory and a model that answers as told.

use std::collections::BTreeMap;

use millrace_models::model::{Reply, TokenProbability};
use millrace_protocol::result::{Finder, SourceLines, StatementVerdict, TaskResult, VerifiedStatement};
use millrace_verification::{
    Calibration, CitedLines, Form, Phrases, Question, Sources, Verification, VerificationCounts,
    probe_questions,
};

const HANDBOOK: &str = "# Kiln\n\nThe kiln at Osterby fires at 1,240 °C. It was rebuilt on October 30, 2031.\n\
    The door weighs 410 g. Ms Aho may open it, but only after noon.\n\n\
    ## Costs\n\n| part | price |\n|---|---|\n| door | 90 € |\n| lamp | 25 € |\n";
const DIARY: &str = "The lamp was broken in May.\nNobody repaired it.\n";

struct Shelf(BTreeMap<&'static str, &'static str>);

impl Shelf {
    fn new() -> Self {
        Self([("handbook.md", HANDBOOK), ("diary.txt", DIARY)].into())
    }
}

impl Sources for Shelf {
    /// A mark is `NAME:LINE` or `NAME`.
    fn cited(&self, mark: &str) -> Vec<CitedLines> {
        match mark.split_once(':') {
            Some((name, line)) => {
                let line = line.parse().expect("a number");
                let lines = SourceLines { source: name.into(), first_line: line, last_line: line };
                vec![CitedLines::Lines(lines)]
            }
            None => vec![CitedLines::Source(mark.into())],
        }
    }

    fn locations(&self) -> Vec<String> {
        self.0.keys().map(|name| (*name).to_owned()).collect()
    }

    fn text(&self, location: &str) -> Option<&str> {
        self.0.get(location).copied()
    }

    /// The lines with most of the words.
    fn search(&self, text: &str, within: Option<&str>) -> Vec<SourceLines> {
        let mut hits: Vec<(usize, SourceLines)> = Vec::new();
        for (name, content) in &self.0 {
            for (at, line) in content.lines().enumerate() {
                let words =
                    text.split_whitespace().filter(|word| word.len() > 3 && line.contains(word)).count();
                let line = u32::try_from(at + 1).expect("a short text");
                if words > 0 && within.is_none_or(|wanted| wanted == *name) {
                    hits.push((
                        words,
                        SourceLines { source: (*name).into(), first_line: line, last_line: line },
                    ));
                }
            }
        }
        hits.sort_by_key(|(words, _)| std::cmp::Reverse(*words));
        hits.into_iter().map(|(_, lines)| lines).collect()
    }
}

fn is_mark(text: &str) -> bool {
    text.split(':').next().is_some_and(|name| ["handbook.md", "diary.txt"].contains(&name))
}

fn calibration(form: Form) -> Calibration {
    Calibration { model: "m".into(), form, threshold: 0.5, accuracy: 0.9, answered: 32, claims: 32 }
}

fn yes(probability: f64) -> Reply {
    let token = |token: &str, probability| TokenProbability { token: token.into(), probability };
    let first_token = vec![token("Yes", probability), token("No", 1.0 - probability)];
    Reply { text: "Yes".into(), first_token, ..Reply::default() }
}

/// Verifies a text with a model that gives `probability` to the request of each question.
fn verify(text: &str, probability: impl Fn(&str) -> f64) -> Vec<VerifiedStatement> {
    verify_answer(text, "", probability)
}

/// Verifies a text that answers a question.
fn verify_answer(text: &str, question: &str, probability: impl Fn(&str) -> f64) -> Vec<VerifiedStatement> {
    let shelf = Shelf::new();
    let mut verification = Verification::new(text, &is_mark, question, &shelf, []);
    let calibration = calibration(Form::Single);
    loop {
        let questions = verification.questions(&calibration);
        if questions.is_empty() {
            return verification.finish(Some("Nobody judged it."));
        }
        for question in questions {
            let probability = probability(question.request.messages[0].text());
            verification.answer(&question, &yes(probability), &calibration);
        }
    }
}

#[test]
fn other_passages_are_shown_only_if_the_cited_ones_do_not_decide() {
    let seen = std::cell::RefCell::new(Vec::new());
    let ask = |needed: &'static str| {
        verify("Somebody has opened the door in May [handbook.md:4].", |question| {
            seen.borrow_mut().push(question.to_owned());
            if question.contains(needed) { 0.9 } else { 0.2 }
        })
    };
    assert_eq!(ask("Ms Aho may open it")[0].verdict, StatementVerdict::Supported);
    assert!(seen.borrow().len() == 1 && !seen.borrow()[0].contains("The lamp was broken"), "{seen:?}");
    assert_eq!(ask("The lamp was broken in May")[0].verdict, StatementVerdict::Supported);
    assert_eq!(seen.borrow().len(), 3, "the cited line again, then all");
    assert_eq!(ask("nothing")[0].verdict, StatementVerdict::Unsupported);
}

#[test]
fn statement_of_a_text_whose_passages_do_not_answer_its_question_is_not_supported() {
    const CLAIM: &str = "Claim: The document answers this question: Who rebuilt the kiln?";
    let text = "Ms Aho has rebuilt the kiln [handbook.md:4]. She opens its door [handbook.md:4].";
    let verdicts = |answer: f64| -> Vec<(StatementVerdict, Option<f64>)> {
        let judge = |question: &str| if question.contains(CLAIM) { answer } else { 0.8 };
        let found = verify_answer(text, "Who rebuilt the kiln?", judge);
        found.iter().map(|one| (one.verdict, one.probability)).collect()
    };
    assert_eq!(verdicts(0.9), [(StatementVerdict::Supported, Some(0.8)); 2]);
    assert_eq!(verdicts(0.1), [(StatementVerdict::Unsupported, Some(0.1)); 2]);
    // The passages of one statement are enough: the others add to it.
    let text = "Ms Aho has rebuilt the kiln [handbook.md:4]. It gets hot there [handbook.md:3].";
    let found = verify_answer(text, "Who rebuilt the kiln?", |question| {
        if question.contains(CLAIM) && !question.contains("Ms Aho may") { 0.1 } else { 0.8 }
    });
    assert!(found.iter().all(|one| one.verdict == StatementVerdict::Supported), "{found:?}");
    let report = verify_answer(text, "Describe the kiln and its door.", |question| {
        assert!(!question.contains("answers this question"), "{question}");
        0.8
    });
    assert!(report.iter().all(|one| one.verdict == StatementVerdict::Supported), "{report:?}");
}

fn outcome(one: &VerifiedStatement) -> (StatementVerdict, Option<Finder>) {
    (one.verdict, one.found_by.clone())
}

#[test]
fn code_supports_quotations_only() {
    let never = |_: &str| -> f64 { 0.0 };
    let found = verify("The kiln at Osterby fires at 1,240 °C [diary.txt].", never);
    assert_eq!(outcome(&found[0]), (StatementVerdict::Supported, Some(Finder::Quotation)));
    assert_eq!((found[0].lines[0].source.as_str(), found[0].lines[0].first_line), ("handbook.md", 3));
    let found = verify("“Nobody repaired it in May, they say.” [diary.txt:2]", never);
    assert_eq!(outcome(&found[0]), (StatementVerdict::Unsupported, Some(Finder::Quotation)));
    // All of its words are in one line, which says something else.
    let found = verify("Ms Aho may open it [handbook.md:4].", never);
    assert_eq!(outcome(&found[0]), (StatementVerdict::Unsupported, Some(Finder::Model("m".into()))));
}

#[test]
fn figure_that_stands_nowhere_refutes_and_one_that_stands_somewhere_proves_nothing() {
    for (text, is_invented) in [
        ("The kiln reaches 1,250 °C [handbook.md:3].", true),
        ("It was rebuilt on October 29, 2031 [handbook.md:3].", true),
        ("The door has a weight of 0.41 kg [handbook.md:4].", false),
        ("In total door and lamp cost 115 € [handbook.md].", false),
        ("The lamp weighs 410 g [handbook.md:4].", false),
    ] {
        let found = verify(text, |_| 0.1);
        let finder = if is_invented { Finder::Figure } else { Finder::Model("m".into()) };
        assert_eq!(
            outcome(&found[0]),
            (StatementVerdict::Unsupported, Some(finder)),
            "{text}: {:?}",
            found[0]
        );
    }
}

#[test]
fn line_with_the_figure_is_shown_to_the_model() {
    let seen = std::cell::RefCell::new(String::new());
    let found = verify("Its door costs 90 € [diary.txt:1].", |question| {
        assert!(question.contains("The lamp was broken in May."), "{question}");
        *seen.borrow_mut() = question.to_owned();
        0.9
    });
    assert!(seen.borrow().contains("| part | price |\n| door | 90 € |"), "{}", seen.borrow());
    assert_eq!(found[0].verdict, StatementVerdict::Supported);
}

#[test]
fn perfect_model_loses_nothing() {
    let text = "# Report\n\nThe kiln is hot [handbook.md:3]. The lamp was mended in June [diary.txt:2].\n\n- It is in Osterby\n";
    let found = verify(text, |question| if question.contains("mended") { 0.0 } else { 1.0 });
    let verdicts: Vec<StatementVerdict> = found.iter().map(|one| one.verdict).collect();
    use StatementVerdict::{Supported, Unsupported};
    assert_eq!(verdicts, [Supported, Unsupported, Supported]);
    let counts = VerificationCounts::of(&found);
    assert_eq!(counts.to_string(), "2 of 3 statements verified (2 by model m), 1 not supported");
    let by = |author: &str| TaskResult {
        author: Some(author.to_owned()),
        statements: found.clone(),
        ..TaskResult::default()
    };
    let own = VerificationCounts::of_result(&by("m")).to_string();
    assert_eq!(own, "2 of 3 statements verified (2 by model m, which also wrote the text), 1 not supported");
    assert_eq!(VerificationCounts::of_result(&by("other")), counts);
    let cut = |one: &VerifiedStatement| -> String {
        text.chars().skip(one.start as usize).take((one.end - one.start) as usize).collect()
    };
    assert_eq!(cut(&found[0]), "The kiln is hot [handbook.md:3].");
    assert_eq!(cut(&found[2]), "It is in Osterby");
}

#[test]
fn strong_model_gives_verdicts_with_lines_and_reasons() {
    let shelf = Shelf::new();
    let text = "Ms Aho may open the door at any time [handbook.md:4]. The kiln is cold [handbook.md:3].";
    let mut verification = Verification::new(text, &is_mark, "", &shelf, []);
    let calibration = calibration(Form::Several);
    let questions = verification.questions(&calibration);
    assert_eq!(questions.len(), 1);
    let answer = r#"{"verdicts": [
        {"statement": 1, "lines": ["L1"], "reason": "Only after noon.", "verdict": "partly"},
        {"statement": 2, "lines": ["L1"], "reason": "It fires at 1,240 °C.", "verdict": "contradicted"}]}"#;
    let reply = Reply { text: answer.into(), ..Reply::default() };
    verification.answer(&questions[0], &reply, &calibration);
    let found = verification.finish(None);
    assert_eq!(found[0].verdict, StatementVerdict::Partly);
    assert_eq!((found[0].reason.as_str(), found[0].lines[0].first_line), ("Only after noon.", 4));
    assert_eq!(found[1].verdict, StatementVerdict::Contradicted);
}

#[test]
fn verdict_on_the_same_words_from_a_cited_source_is_taken_over() {
    let shelf = Shelf::new();
    let calibration = calibration(Form::Single);
    let known = verify("The kiln is hot [handbook.md:3].", |_| 0.8);
    let asked = |text: &str, known: &[VerifiedStatement]| {
        let mut verification = Verification::new(text, &is_mark, "", &shelf, known.to_vec());
        (verification.questions(&calibration).len(), verification.finish(None))
    };
    // In another section, and as another citation of the same source.
    let (questions, taken) = asked("# Heat\n\nThe kiln is hot [handbook.md:4].", &known);
    assert_eq!(
        (questions, taken[0].verdict, taken[0].probability),
        (0, StatementVerdict::Supported, Some(0.8))
    );
    assert_eq!(taken[0].start, 8, "the place is that in the new text");
    assert_eq!(asked("The kiln is cold [handbook.md:3].", &known).0, 1, "other words");
    assert_eq!(asked("The kiln is hot [diary.txt:1].", &known).0, 1, "another source");
    let of_other = Finder::Model("other".into());
    let by_other = [VerifiedStatement { found_by: Some(of_other), ..known[0].clone() }];
    assert_eq!(asked("The kiln is hot [handbook.md:3].", &by_other).0, 1, "another model");
}

#[test]
fn statement_that_nobody_judged_is_unverified() {
    let shelf = Shelf::new();
    let mut verification = Verification::new("The kiln is hot [handbook.md:3].", &is_mark, "", &shelf, []);
    let calibration = calibration(Form::Single);
    let questions = verification.questions(&calibration);
    verification.answer(&questions[0], &Reply { text: "Perhaps.".into(), ..Reply::default() }, &calibration);
    let found = verification.finish(None);
    assert_eq!(outcome(&found[0]), (StatementVerdict::Unverified, None));
    assert_eq!(found[0].reason, "The model gave no verdict.");
}

/// The replies to the probe of a model that gives these probabilities to true and to false claims.
fn calibrate(form: Form, answer: impl Fn(usize, &Question) -> Reply) -> Calibration {
    let replies: Vec<(usize, Reply)> =
        probe_questions(form).iter().enumerate().map(|(at, question)| (at, answer(at, question))).collect();
    Calibration::of_replies("m", form, &replies)
}

#[test]
fn model_without_skill_is_found_out() {
    let always_no = calibrate(Form::Single, |_, _| yes(0.02));
    assert!(!always_no.is_believed(), "{always_no:?}");
    assert!(
        always_no.describe_disbelief(Phrases::english()).contains("50%"),
        "{}",
        always_no.describe_disbelief(Phrases::english())
    );
    // True and false claims alternate; a shy model is sure of nothing, and still tells them apart.
    let shy = calibrate(Form::Single, |at, _| yes(if at % 2 == 0 { 0.2 } else { 0.01 }));
    assert!(shy.is_believed() && shy.threshold < 0.2, "{shy:?}");
    let mute = calibrate(Form::Single, |_, _| Reply { text: "I can't say.".into(), ..Reply::default() });
    assert!(!mute.is_believed() && mute.describe_disbelief(Phrases::english()).contains("none of 32 claims"));
    let broken = calibrate(Form::Several, |_, _| Reply { text: "{".into(), ..Reply::default() });
    assert!(!broken.is_believed());
}

#[test]
fn instruction_in_a_source_is_material() {
    let seen = std::cell::RefCell::new(String::new());
    verify("The kiln is cold [handbook.md:3].", |question| {
        *seen.borrow_mut() = question.to_owned();
        0.0
    });
    let question = seen.borrow();
    assert!(
        question.starts_with("Document: ") && question.ends_with("\nClaim: The kiln is cold."),
        "{question}"
    );
}
