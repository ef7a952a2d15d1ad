//! Real documents of other projects: the words that independent libraries find in them, at the same pages, slides and sheets.
//! `tests/real/collect.py` collects them from a package index; `MILLRACE_REAL_DOCUMENTS` names the folder. They are not part
//! of this repository, since not all licences allow that.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use millrace_documents::text::decode_text;
use millrace_documents::{Extractor, detect_binary_format, markdown};
use serde::Deserialize;

/// The share of words that must be found: the libraries divide some words in other ways, such as at ligatures.
const MIN_SHARE: f64 = 0.95;
/// An invalid file that is read without a text: its text stands outside of text objects (ISO 32000-1, 9.4.1).
const WITHOUT_TEXT: &str = "Sample_Td-matrix";

#[derive(Deserialize)]
struct ExpectedDocument {
    file: String,
    places: Vec<ExpectedPlace>,
    /// The lines, if it is a source file: all of them must be the same.
    #[serde(default)]
    lines: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ExpectedPlace {
    place: Option<String>,
    words: Vec<String>,
}

/// The text of a document by place.
fn read_places(ending: &str, bytes: &[u8]) -> Result<Vec<(Option<String>, String)>, String> {
    if ending == "html" {
        let text = String::from_utf8_lossy(bytes);
        let read = markdown::html_to_markdown(&text, &["script", "style", "title"], 256);
        return read.map(|text| vec![(None, text)]).map_err(|error| error.to_string());
    }
    if ["csv", "source"].contains(&ending) {
        if let Some(format) = detect_binary_format(bytes, Some(ending)) {
            return Err(format!("it is taken for {format:?}"));
        }
        return Ok(vec![(None, decode_text(bytes, None).ok_or("it is no text")?)]);
    }
    let format = detect_binary_format(bytes, Some(ending)).ok_or("it has no known format")?;
    let read = Extractor::at(env!("CARGO_BIN_EXE_millrace-extractor")).extract_text(format, bytes);
    let document = read.map_err(|error| error.to_string())?;
    Ok(document.parts.into_iter().map(|part| (part.place, part.text)).collect())
}

/// Returns the number of the first line that differs; `None` if none does.
fn find_different_line(expected: &[String], read: &[(Option<String>, String)]) -> Option<usize> {
    let text: String = read.iter().map(|(_, text)| text.as_str()).collect();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let lines: Vec<&str> = text.split('\n').collect();
    let count = lines.len().max(expected.len());
    (0..count).find(|at| lines.get(*at).copied() != expected.get(*at).map(String::as_str)).map(|at| at + 1)
}

/// The share of the expected words that are found at their places.
fn share_of_found_words(expected: &ExpectedDocument, read: &[(Option<String>, String)]) -> f64 {
    let (mut all, mut found) = (0_u32, 0_u32);
    for place in &expected.places {
        let text: String = read
            .iter()
            .filter(|(at, _)| place.place.is_none() || *at == place.place)
            .map(|(_, text)| text.as_str())
            .collect();
        // One library leaves out spaces that another one sees.
        let text: String = text.chars().filter(|c| !c.is_whitespace() && *c != '\\').collect();
        all += u32::try_from(place.words.len()).unwrap();
        let is_found = |word: &&String| text.contains(word.as_str());
        found += u32::try_from(place.words.iter().filter(is_found).count()).unwrap();
    }
    f64::from(found) / f64::from(all.max(1))
}

#[test]
fn words_of_real_documents_are_found_at_their_places() {
    let Some(folder) = std::env::var_os("MILLRACE_REAL_DOCUMENTS") else {
        println!("skipped: MILLRACE_REAL_DOCUMENTS names no folder of tests/real/collect.py");
        return;
    };
    let folder = Path::new(&folder);
    let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Vec<ExpectedDocument>> = serde_json::from_str(&expected).unwrap();
    let mut faults = Vec::new();
    for (ending, documents) in &expected {
        let mut shares = Vec::new();
        for document in documents.iter().filter(|document| !document.file.contains(WITHOUT_TEXT)) {
            let bytes = fs::read(folder.join(&document.file)).unwrap();
            match read_places(ending, &bytes) {
                Ok(read) => {
                    let share = share_of_found_words(document, &read);
                    shares.push(share);
                    if let Some(line) =
                        document.lines.as_ref().and_then(|lines| find_different_line(lines, &read))
                    {
                        faults.push(format!("{}: line {line} differs", document.file));
                    }
                    if share < MIN_SHARE {
                        faults.push(format!("{}: {:.0} % of the words", document.file, share * 100.0));
                    }
                }
                Err(error) => faults.push(format!("{}: {error}", document.file)),
            }
        }
        let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        println!("{ending}: {} documents, {:.1} % of the words", shares.len(), mean * 100.0);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
