//! The language of a question, which is often too short for a certain detection: its function words and its script count as well.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use millrace_figures::{guess_language, is_unspaced};

/// The number of characters of a text that its language is chosen by.
const SAMPLE: usize = 4_000;
/// The letters of a word that a sign of a script without spaces stands for.
const LETTERS_OF_A_SIGN: usize = 3;
/// The least share of function words, or confidence of the detection, or sum of both.
const MIN_EVIDENCE: f64 = 0.25;
/// The lists of function words of languages; the longer codes are those of mixtures.
const CODE_LENGTH: usize = 2;
/// The first and last letters of scripts, with the language that is taken for one in that script.
const USUAL_LANGUAGES: [(char, char, &str); 3] =
    [('\u{400}', '\u{52f}', "ru"), ('\u{600}', '\u{6ff}', "ar"), ('\u{900}', '\u{97f}', "hi")];

static FUNCTION_WORDS: LazyLock<BTreeMap<&str, HashSet<&str>>> = LazyLock::new(|| {
    let codes = stop_words::available_languages().iter().filter(|code| code.len() == CODE_LENGTH);
    codes
        .map(|code| (*code, stop_words::lookup(code).unwrap_or_default().iter().copied().collect()))
        .collect()
});

/// Returns the code of the language of the first text whose language is clear, or else the usual one of its script.
pub(crate) fn choose_language(texts: &[&str]) -> Option<&'static str> {
    let sample = |text: &str| text.chars().take(SAMPLE).collect::<String>();
    let samples: Vec<String> = texts.iter().map(|text| sample(text)).collect();
    let clear = samples.iter().find_map(|text| language_of(text));
    clear.or_else(|| samples.iter().find_map(|text| usual_language_of_script(text)))
}

/// The language of a text, unless another one is as likely.
fn language_of(text: &str) -> Option<&'static str> {
    let signs: String = text.chars().filter(|c| is_unspaced(*c)).collect();
    let letters = text.chars().filter(|c| c.is_alphabetic() && !is_unspaced(*c)).count();
    if signs.chars().count() * LETTERS_OF_A_SIGN > letters {
        return Some(guess_language(&signs)?.code);
    }
    let guess = guess_language(text)?;
    if guess.is_reliable {
        return Some(guess.code);
    }
    let lower = text.to_lowercase();
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty()).collect();
    let is_guess = |code: &str| if code == guess.code { guess.confidence } else { 0.0 };
    let share = |known: &HashSet<&str>| {
        words.iter().filter(|word| known.contains(*word)).count() as f64 / words.len().max(1) as f64
    };
    let mut evidence: BTreeMap<&'static str, f64> =
        FUNCTION_WORDS.iter().map(|(code, known)| (*code, share(known) + is_guess(code))).collect();
    evidence.entry(guess.code).or_insert(guess.confidence);
    let (best, most) = evidence.iter().max_by(|one, other| one.1.total_cmp(other.1))?;
    let is_unique = evidence.values().filter(|value| **value >= *most).count() == 1;
    (is_unique && *most >= MIN_EVIDENCE).then_some(*best)
}

fn usual_language_of_script(text: &str) -> Option<&'static str> {
    let usual = |c: char| USUAL_LANGUAGES.iter().find(|(first, last, _)| (*first..=*last).contains(&c));
    text.chars().find(|c| c.is_alphabetic()).and_then(usual).map(|(_, _, language)| *language)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_questions_have_a_language() {
        for (question, language) in [
            ("What does it weigh?", "en"),
            ("Compare the saws. Name the lathe. Who repairs them? Since when?", "en"),
            ("Wie schwer ist der Tarn 20?", "de"),
            ("Was kostet eine Karte?", "de"),
            ("Qui a construit le pont ?", "fr"),
            ("¿Cuánto cuesta?", "es"),
            ("Quanto è alta la torre?", "it"),
            ("Quando foi fechada a fábrica?", "pt"),
            ("Hoe hoog is de toren?", "nl"),
            ("Jak wysoka jest wieża?", "pl"),
            ("Когда закрыли завод?", "ru"),
            ("Bu fabrika ne zaman ve neden kapandı?", "tr"),
            ("متى أغلق المصنع؟", "ar"),
            ("लैंप का वज़न कितना है?", "hi"),
            ("โคมไฟหนักเท่าไร", "th"),
            ("Tarn 20 有多重？", "zh"),
            ("東京の人口は？", "ja"),
            ("램프의 무게는?", "ko"),
        ] {
            assert_eq!(choose_language(&[question]), Some(language), "{question}");
        }
    }

    #[test]
    fn unclear_question_takes_the_language_of_the_text_or_of_its_script() {
        assert_eq!(choose_language(&["Tarn 20?", "Die Lampe ist aus Stahl und wiegt 9,7 kg."]), Some("de"));
        assert_eq!(choose_language(&["What is „Osterby“ about?", "Die Mühle steht am Fluss."]), Some("en"));
        assert_eq!(choose_language(&["Щ?", ""]), Some("ru"));
        assert_eq!(choose_language(&["???", ""]), None);
        assert_eq!(
            choose_language(&["What does 火 mean?"]),
            Some("en"),
            "one sign is a word in an English text"
        );
    }
}
