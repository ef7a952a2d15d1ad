//! Splits an objective into questions that can be answered separately. It owns the rules of the split: sentences, list
//! items, and conjunctions before a question or an instruction; text that can't be split safely stays together, such as a
//! question that refers to the one before it, and nothing is dropped.

use super::question::has_searchable_terms;
use super::sentences;

/// The maximum number of questions of one objective; more are combined in groups.
pub(super) const MAX_QUESTIONS: usize = 12;

const QUESTION_WORDS: &[&str] =
    &["how", "what", "when", "where", "which", "who", "whom", "whose", "why", "whether"];
const AUXILIARIES: &[&str] = &[
    "is", "are", "was", "were", "do", "does", "did", "can", "could", "should", "will", "would", "may",
    "might", "must", "has", "have", "had",
];
/// After "and", an auxiliary begins a question only before one of these: "and is it safe", but not "and are used".
const SUBJECTS: &[&str] = &[
    "it", "they", "there", "this", "that", "these", "those", "the", "a", "an", "i", "we", "you", "any",
    "all", "each", "he", "she", "anyone", "somebody", "someone",
];
const INSTRUCTIONS: &[&str] = &[
    "analyse",
    "analyze",
    "answer",
    "assess",
    "check",
    "compare",
    "contrast",
    "cover",
    "describe",
    "determine",
    "discuss",
    "evaluate",
    "examine",
    "explain",
    "find",
    "give",
    "identify",
    "investigate",
    "list",
    "name",
    "outline",
    "report",
    "research",
    "review",
    "say",
    "show",
    "state",
    "study",
    "summarise",
    "summarize",
    "tell",
    "write",
];
/// Words that refer to something named before.
const PRONOUNS: &[&str] =
    &["it", "its", "they", "them", "their", "theirs", "he", "she", "him", "her", "his", "former", "latter"];
/// Words that do so after "the".
const OTHERS: &[&str] = &["other", "others", "same", "one", "ones"];

/// The questions of an objective, in order; at least one.
pub(super) fn split_into_questions(objective: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for sentence in split_into_sentences(objective) {
        parts.extend(split_into_clauses(&sentence));
    }
    let mut questions: Vec<String> = Vec::new();
    for part in join_statements(parts) {
        let question = capitalize_and_punctuate(&part);
        let belongs_to_last = !has_searchable_terms(&part) || refers_back(&part);
        if questions.contains(&question) {
            continue;
        }
        match questions.last_mut() {
            Some(subject) if belongs_to_last => *subject = format!("{subject} {question}"),
            Some(_) | None => questions.push(question),
        }
    }
    if questions.is_empty() {
        return vec![objective.trim().to_owned()];
    }
    let group = questions.len().div_ceil(MAX_QUESTIONS);
    questions.chunks(group).map(|group| group.join(" ")).collect()
}

/// Splits into sentences; a list item or a paragraph always begins a new one.
fn split_into_sentences(objective: &str) -> Vec<String> {
    let lines: Vec<(usize, &str)> = objective.lines().enumerate().map(|(at, line)| (at + 1, line)).collect();
    sentences::split_into_sentences(&lines)
        .into_iter()
        .map(|sentence| sentences::strip_list_marker(&sentence.text).to_owned())
        .filter(|text| text.chars().any(char::is_alphanumeric))
        .collect()
}

/// Splits a sentence into parts that each ask or instruct.
fn split_into_clauses(sentence: &str) -> Vec<String> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let mut parts: Vec<Vec<&str>> = vec![Vec::new()];
    let mut at = 0;
    while at < words.len() {
        let so_far = parts.last().map(|part| part.join(" ")).unwrap_or_default();
        let skipped = count_connecting_words(&words[at..], so_far.ends_with([',', ';']));
        match skipped {
            Some(skipped) if has_searchable_terms(&so_far) => {
                parts.push(vec![words[at + skipped]]);
                at += skipped + 1;
            }
            Some(_) | None => {
                if let Some(part) = parts.last_mut() {
                    part.push(words[at]);
                }
                at += 1;
            }
        }
    }
    parts.into_iter().map(|part| part.join(" ")).filter(|part| !part.is_empty()).collect()
}

/// Returns the number of connecting words if a new clause begins here.
fn count_connecting_words(words: &[&str], after_comma: bool) -> Option<usize> {
    let lower: Vec<String> = words.iter().take(4).map(|word| strip_punctuation(word)).collect();
    let skipped = match lower.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["and" | "but" | "or", "also" | "then", ..] => 2,
        ["and" | "but" | "or" | "then" | "also" | "plus", ..] => 1,
        _ if after_comma => 0,
        _ => return None,
    };
    let first = lower.get(skipped)?.as_str();
    let second = lower.get(skipped + 1).map(String::as_str);
    let asks = QUESTION_WORDS.contains(&first)
        || (AUXILIARIES.contains(&first) && second.is_some_and(|second| SUBJECTS.contains(&second)));
    let instructs = INSTRUCTIONS.contains(&first) && second.is_some();
    // Without "and", ", which …" belongs to the clause before it.
    let relative =
        skipped == 0 && (matches!(first, "which" | "who" | "whom" | "whose" | "where" | "when") || !asks);
    ((asks || instructs) && !relative).then_some(skipped)
}

/// Joins statements to the question after them or, at the end, before them.
fn join_statements(parts: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for part in parts {
        let part = strip_leading_conjunction(&part).to_owned();
        if is_question(&part) || (is_instruction(&part) && has_searchable_terms(&part)) {
            waiting.push(part);
            joined.push(
                waiting.drain(..).map(|part| ensure_final_punctuation(&part)).collect::<Vec<_>>().join(" "),
            );
        } else {
            waiting.push(part);
        }
    }
    let rest = waiting.iter().map(|part| ensure_final_punctuation(part)).collect::<Vec<_>>().join(" ");
    match joined.last_mut() {
        Some(last) if !rest.is_empty() => *last = format!("{} {rest}", ensure_final_punctuation(last)),
        Some(_) => {}
        None if rest.is_empty() => {}
        None => joined.push(rest),
    }
    joined
}

/// `true` if a question has a word in place of a subject that was named before.
fn refers_back(part: &str) -> bool {
    let words: Vec<String> = part.split_whitespace().map(strip_punctuation).collect();
    let is_other = |pair: &[String]| pair[0] == "the" && OTHERS.contains(&pair[1].as_str());
    words.iter().any(|word| PRONOUNS.contains(&word.as_str())) || words.windows(2).any(is_other)
}

fn is_question(part: &str) -> bool {
    let first = first_word(part);
    part.trim_end().ends_with('?')
        || QUESTION_WORDS.contains(&first.as_str())
        || AUXILIARIES.contains(&first.as_str())
}

fn is_instruction(part: &str) -> bool {
    let first = first_word(part);
    INSTRUCTIONS.contains(&first.as_str()) || first == "please"
}

fn strip_leading_conjunction(part: &str) -> &str {
    match part.split_once(char::is_whitespace) {
        Some((first, rest)) if matches!(strip_punctuation(first).as_str(), "and" | "or" | "but") => {
            rest.trim_start()
        }
        Some(_) | None => part,
    }
}

/// Capitalises a part and adds a period or a question mark.
fn capitalize_and_punctuate(part: &str) -> String {
    let bare_part = part.trim().trim_end_matches([',', ';', ':', ' ']);
    let mut letters = bare_part.chars();
    let capital: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    ensure_final_punctuation(&capital)
}

fn ensure_final_punctuation(part: &str) -> String {
    let part = part.trim().trim_end_matches([',', ';', ':']);
    if part.ends_with(['.', '?', '!']) {
        return part.to_owned();
    }
    format!("{part}{}", if is_question(part) { '?' } else { '.' })
}

fn first_word(part: &str) -> String {
    strip_punctuation(part.split_whitespace().next().unwrap_or_default())
}

fn strip_punctuation(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_split_into_its_questions() {
        let table: &[(&str, &[&str])] = &[
            (
                "How do these licences treat patents, and when does a patent grant end?",
                &["How do these licences treat patents?", "When does a patent grant end?"],
            ),
            (
                "Compare the warranty clauses of MIT and Apache and list their patent rules.",
                &["Compare the warranty clauses of MIT and Apache. List their patent rules."],
            ),
            ("What is a lane and why?", &["What is a lane? Why?"]),
            ("When and why does a grant end?", &["When and why does a grant end?"]),
            (
                "Which licences permit sale and are compatible with each other?",
                &["Which licences permit sale and are compatible with each other?"],
            ),
            (
                "We sell a closed product. Which licences let us? Is it safe?",
                &["We sell a closed product. Which licences let us? Is it safe?"],
            ),
            (
                "Answer these:\n1. What is a lease?\n2. Who holds it?\n\n- and how long",
                &["Answer these. What is a lease? Who holds it? How long?"],
            ),
            (
                "How much does the Tarn 20 weigh, and which protection rating does it have?",
                &["How much does the Tarn 20 weigh? Which protection rating does it have?"],
            ),
            (
                "Which probe works with firmware 4.2? Why does the other not?",
                &["Which probe works with firmware 4.2? Why does the other not?"],
            ),
            ("patent clauses in open-source licences", &["Patent clauses in open-source licences."]),
            ("The clause, which ends early, matters. Why?", &["The clause, which ends early, matters. Why?"]),
            ("???", &["???"]),
        ];
        for (objective, expected) in table {
            assert_eq!(split_into_questions(objective), *expected, "{objective}");
        }
    }

    #[test]
    fn no_question_is_dropped_however_many_there_are() {
        let objective: String = (0..100).map(|n| format!("Is subject{n} safe? ")).collect();
        let questions = split_into_questions(&objective);
        assert!(questions.len() <= MAX_QUESTIONS);
        let all = questions.join(" ");
        assert!((0..100).all(|n| all.contains(&format!("Is subject{n} safe?"))));
    }
}
