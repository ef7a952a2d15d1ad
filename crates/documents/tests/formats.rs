//! Documents of each format, from programs that people use, and broken and hostile ones. `tests/fixtures/generate.py` writes
//! them. Each is read in a child process, as in production.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_documents::{
    BinaryFormat, ExtractError, ExtractedText, Extractor, ExtractorLimits, detect_binary_format,
};

const TOPICS: [&str; 10] =
    ["wheel", "sluice", "millstone", "hopper", "gear", "shaft", "race", "dam", "sieve", "brake"];

pub(crate) fn fixture_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub(crate) fn extractor() -> Extractor {
    Extractor::at(env!("CARGO_BIN_EXE_millrace-extractor"))
}

pub(crate) fn extract_file(name: &str) -> Result<ExtractedText, ExtractError> {
    let bytes = fs::read(fixture_folder().join(name)).unwrap();
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    let format = detect_binary_format(&bytes, ending).unwrap_or_else(|| panic!("{name} has no known format"));
    extractor().extract_text(format, &bytes)
}

pub(crate) fn fact(topic: &str, page: usize) -> String {
    format!("The {topic} of mill {page} weighs {} kilograms.", topic.len() * 100 + page)
}

/// Checks that each of the ten documents of a format has its facts at their places.
fn check_places(ending: &str, place: impl Fn(usize) -> Option<String>) {
    for topic in TOPICS {
        let name = format!("{topic}.{ending}");
        let document = extract_file(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        for page in 1..=3 {
            let holding: Vec<_> =
                document.parts.iter().filter(|part| part.text.contains(&fact(topic, page))).collect();
            assert_eq!(holding.len(), 1, "{name}: {document:?}");
            assert_eq!(holding[0].place, place(page), "{name}");
        }
        if !["xlsx", "xls"].contains(&ending) {
            assert_eq!(document.title.as_deref(), Some(format!("On the {topic}").as_str()), "{name}");
        }
    }
}

#[test]
fn pdf_files_have_pages() {
    check_places("pdf", |page| Some(format!("page {page}")));
    let document = extract_file("wheel.pdf").unwrap();
    assert_eq!(document.parts.len(), 3);
    assert!(document.parts[0].text.contains("Grinding needs water – “enough of it”."), "{document:?}");
}

#[test]
fn text_documents_have_headings_and_tables() {
    check_places("docx", |_| None);
    let text = &extract_file("dam.docx").unwrap().parts[0].text;
    let expected = format!("# Chapter 2\n\n{}\n\npart | weight\ndam | 2\n\n# Chapter 3\n", fact("dam", 2));
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn slides_have_numbers_and_notes() {
    check_places("pptx", |slide| Some(format!("slide {slide}")));
    let document = extract_file("race.pptx").unwrap();
    assert!(document.parts[1].text.contains("Notes:\n\nRemember the race."), "{document:?}");
}

#[test]
fn workbooks_have_sheets_and_rows() {
    for ending in ["xlsx", "xls"] {
        check_places(ending, |sheet| Some(format!("sheet Mill {sheet}")));
    }
    let document = extract_file("gear.xlsx").unwrap();
    let expected = format!("statement | weight | date\n{} | 402 | 2026-01-02\n", fact("gear", 2));
    assert_eq!(document.parts[1].text, expected);
}

#[test]
fn publications_have_sections() {
    check_places("epub", |section| Some(format!("section {section}")));
}

#[test]
fn messages_have_headers_and_attachments() {
    check_places("eml", |_| None);
    let text = &extract_file("brake.eml").unwrap().parts[0].text;
    for expected in [
        "From: Mia Müller <mia@mill.example>\nTo: desk@mill.example\nDate: 2026-01-01T12:00:00Z\nSubject: On the brake\n",
        "Grüße\n",
        "Attachment: brake.pdf\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn hostile_and_broken_files_are_refused_with_the_reason() {
    let mut names: Vec<String> = fs::read_dir(fixture_folder().join("hostile"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 30, "{names:?}");
    for name in &names {
        let began = Instant::now();
        let outcome = extract_file(&format!("hostile/{name}"));
        assert!(began.elapsed() < Duration::from_secs(65), "{name} took {:?}", began.elapsed());
        let text = match outcome {
            // A file may also have nothing to read.
            Ok(document) if document.parts.iter().all(|part| part.text.trim().is_empty()) => continue,
            Ok(document) => panic!("{name} was read: {:.300?}", document),
            Err(error) => error,
        };
        assert!(!text.to_string().contains('\n') && text.to_string().len() < 400, "{name}: {text}");
        if name.starts_with("encrypted") {
            assert_eq!(text, ExtractError::Encrypted, "{name}");
        }
        if ["bomb.docx", "bomb.odt"].contains(&name.as_str()) {
            assert!(matches!(text, ExtractError::TooLarge(_)), "{name}: {text}");
        }
    }
}

#[test]
fn any_prefix_and_any_flipped_byte_of_a_file_is_read_or_refused() {
    let limits = ExtractorLimits { seconds: 20, ..ExtractorLimits::default() };
    for name in [
        "wheel.pdf",
        "wheel.docx",
        "wheel.xlsx",
        "wheel.pptx",
        "wheel.epub",
        "wheel.eml",
        "collected/testODFwithOOo3.odt",
        "collected/testComment.rtf",
        "collected/test4.ipynb",
        "collected/simple-table2.doc",
        "collected/WithComments.ppt",
        "collected/ASCII_CP1251_LCID1049.msg",
    ] {
        let bytes = fs::read(fixture_folder().join(name)).unwrap();
        let ending = name.rsplit_once('.').unwrap().1;
        let format = detect_binary_format(&bytes, Some(ending)).unwrap();
        for part in 1..8 {
            let at = bytes.len() * part / 8;
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x55;
            for broken in [&bytes[..at], &flipped] {
                let outcome = extractor().with_limits(limits).extract_text(format, broken);
                let is_answer = !matches!(&outcome, Err(ExtractError::NotStarted(_)));
                assert!(is_answer, "{ending} at {at}: {outcome:?}");
            }
        }
    }
}

#[test]
fn child_is_stopped_at_its_limits() {
    let bytes = fs::read(fixture_folder().join("wheel.pdf")).unwrap();
    let extract = |limits| extractor().with_limits(limits).extract_text(BinaryFormat::Pdf, &bytes);
    let limits = ExtractorLimits::default();
    assert_eq!(extract(ExtractorLimits { output: 64, ..limits }), Err(ExtractError::TooLarge(0)));
    let starved = extract(ExtractorLimits { memory: 1024 * 1024, ..limits });
    assert!(matches!(starved, Err(ExtractError::Crashed(_))), "{starved:?}");
    let asleep = Extractor::at("/bin/sleep-that-does-not-exist").extract_text(BinaryFormat::Pdf, &bytes);
    assert!(matches!(asleep, Err(ExtractError::NotStarted(_))), "{asleep:?}");
}
