//! The language of a text, which determines the stems of its words and its stop words. Detection, stemmers and stop words are the data
//! of libraries; a language that they do not know is searched by its words as they are written.

use std::collections::HashSet;
use std::sync::{LazyLock, OnceLock};

use frostem::{Algorithm, Stemmer};
use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::CodePointMapData;
use icu_properties::props::Script;
use serde::{Deserialize, Serialize};
use whatlang::{Detector, Lang};

/// The number of characters of a text that its language is detected from.
const SAMPLE: usize = 4_000;
/// Names of stemmers for languages that the stemmers know by another name than the detection.
const STEMMER_NAMES: &[(Lang, &str)] = &[(Lang::Nob, "norwegian"), (Lang::Pes, "persian")];

/// The language of a text; the default one is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub(crate) struct Language(Option<Lang>);

impl Language {
    /// Detects the language of a text. That of a short text often remains unknown.
    pub fn detect(text: &str) -> Self {
        let end = text.char_indices().nth(SAMPLE).map_or(text.len(), |(end, _)| end);
        let found = whatlang::detect(&text[..end]).filter(whatlang::Info::is_reliable);
        Self(found.map(|found| found.lang()))
    }

    /// Detects the language of a query for texts in these languages.
    pub fn detect_query(query: &str, languages: &[Self]) -> Self {
        match (Self::detect(query), languages) {
            (Self(Some(detected)), _) => Self(Some(detected)),
            (Self(None), [only]) => *only,
            (Self(None), _) => {
                let known = languages.iter().filter_map(|language| language.0).collect();
                Self(Detector::with_allowlist(known).detect_lang(query))
            }
        }
    }

    /// `true` for a word that says nothing about the subject of a text in this language.
    pub fn is_stop_word(self, word: &str) -> bool {
        self.data_for(word).is_some_and(|data| data.stop_words.contains(&fold_word(word)))
    }

    /// Returns the form in which the words of a text in this language are compared.
    pub fn stem(self, word: &str) -> String {
        match self.data_for(word).and_then(|data| data.stemmer) {
            // The rules of stemmers need the diacritics.
            Some(stemmer) => fold_word(&stemmer.stem(&fold_case(word))),
            None => fold_word(word),
        }
    }

    /// The data for a word: those of the language, or of a usual language of another script that the word is in.
    fn data_for(self, word: &str) -> Option<&'static LanguageData> {
        let script = whatlang::detect_script(word)?;
        let usual = if script == whatlang::Script::Latin { Lang::Eng } else { *script.langs().first()? };
        Some(LanguageData::of(self.0.filter(|lang| script.langs().contains(lang)).unwrap_or(usual)))
    }
}

impl From<String> for Language {
    fn from(code: String) -> Self {
        Self(Lang::from_code(code))
    }
}

impl From<Language> for String {
    fn from(language: Language) -> Self {
        language.0.map(|lang| lang.code().to_owned()).unwrap_or_default()
    }
}

/// Data of libraries on the words of a language.
#[derive(Default)]
struct LanguageData {
    stemmer: Option<Stemmer>,
    stop_words: HashSet<String>,
}

impl LanguageData {
    fn of(lang: Lang) -> &'static Self {
        static ALL: LazyLock<Vec<(Lang, OnceLock<LanguageData>)>> =
            LazyLock::new(|| Lang::all().iter().map(|lang| (*lang, OnceLock::new())).collect());
        static NOTHING: LazyLock<LanguageData> = LazyLock::new(LanguageData::default);
        let known = ALL.iter().find(|(other, _)| *other == lang);
        known.map_or(&NOTHING, |(_, data)| data.get_or_init(|| Self::load(lang)))
    }

    fn load(lang: Lang) -> Self {
        let other = STEMMER_NAMES.iter().find(|(other, _)| *other == lang).map(|(_, name)| *name);
        let Ok(algorithm) = Algorithm::from_name(other.unwrap_or(lang.code())) else {
            return Self::default();
        };
        // The stop words have the short code of the language, which the stemmers know as well.
        let is_same = |code: &&&str| Algorithm::from_name(code) == Ok(algorithm);
        let code = stop_words::available_languages().iter().find(is_same);
        let stop_words = code.and_then(stop_words::lookup).unwrap_or_default();
        Self {
            stemmer: Some(Stemmer::new(algorithm)),
            stop_words: stop_words.iter().map(|word| fold_word(word)).collect(),
        }
    }
}

pub(super) fn script_of(c: char) -> Script {
    CodePointMapData::<Script>::new().get(c)
}

/// Folds the case and compatible forms of a word.
fn fold_case(word: &str) -> String {
    fold(word, false)
}

/// Folds a word: lower case, compatible forms as one, Latin and Greek letters without diacritics.
pub(super) fn fold_word(word: &str) -> String {
    fold(word, true)
}

fn fold(word: &str, folds_marks: bool) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(word);
    let mut letters = String::with_capacity(decomposed.len());
    let mut drops_marks = false;
    for c in decomposed.chars() {
        match c {
            '\u{300}'..='\u{36f}' if drops_marks => {}
            // The soft hyphen and the zero-width joiners and spaces.
            '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}' => {}
            _ => {
                drops_marks = folds_marks && matches!(script_of(c), Script::Latin | Script::Greek);
                letters.extend(c.to_lowercase());
            }
        }
    }
    ComposingNormalizerBorrowed::new_nfc().normalize(&letters).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(code: &str) -> Language {
        Language(Lang::from_code(code))
    }

    #[test]
    fn forms_of_a_word_are_one_term_in_their_language() {
        for (code, one, other) in [
            ("eng", "licensed", "licensing"),
            ("deu", "Verträge", "Vertrag"),
            ("spa", "información", "informaciones"),
            ("fra", "régulières", "régulier"),
            ("tur", "kitapları", "kitap"),
            ("rus", "книги", "книгой"),
            ("arb", "الكتاب", "كتاب"),
            ("nob", "husene", "hus"),
        ] {
            assert_eq!(language(code).stem(one), language(code).stem(other), "{code}");
        }
        assert_ne!(language("eng").stem("Mühlen"), language("eng").stem("Mühle"));
        assert_eq!(language("rus").stem("books"), "book", "a word in another script");
        assert_eq!(language("tha").stem("ภาษา"), "ภาษา", "no stemmer");
    }

    #[test]
    fn stop_words_are_those_of_the_language() {
        assert!(language("eng").is_stop_word("The") && !language("eng").is_stop_word("der"));
        assert!(language("deu").is_stop_word("Über") && !language("deu").is_stop_word("the"));
        assert!(!language("cmn").is_stop_word("的"), "there is no list");
    }

    #[test]
    fn query_is_in_a_language_of_the_texts_unless_it_says_otherwise() {
        let german = Language::detect(
            "Die Mühle steht am Fluss, und ihr Rad wurde im Winter für drei Wochen angehalten.",
        );
        assert_eq!(german, language("deu"));
        assert_eq!(Language::detect_query("Mühle?", &[german]), german);
        assert_eq!(Language::detect_query("Rad der Mühle", &[language("eng"), german]), german);
        assert_eq!(Language::detect(""), Language::default());
    }
}
