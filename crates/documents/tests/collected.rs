//! Documents from the tests of other projects (`tests/fixtures/README.md` names them and their licences): text that is not in the
//! body, formats of other programs, tables of PDF files, and PDF files that are damaged.

use std::collections::BTreeMap;
use std::fs;

use millrace_documents::{BinaryFormat, ExtractError};
use serde::Deserialize;

use crate::formats::{extract_file, extractor, fact, fixture_folder};

/// Checks that a document has texts in their order, and each once. A text may begin with the place of its part in brackets.
fn check_texts(name: &str, texts: &[&str]) {
    let document =
        extract_file(&format!("collected/{name}")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let parts = document.parts.iter().map(|part| match &part.place {
        Some(place) => format!("[{place}]\n{}", part.text),
        None => part.text.clone(),
    });
    let all: String = parts.collect();
    let mut rest = all.as_str();
    for text in texts {
        assert_eq!(all.matches(text).count(), 1, "{name}: {text}\n{all}");
        let (_, after) =
            rest.split_once(text).unwrap_or_else(|| panic!("{name}: {text} is too late in\n{all}"));
        rest = after;
    }
}

#[test]
fn text_documents_have_the_text_beside_their_body() {
    check_texts(
        "testWORD_charts.docx",
        &["Chart: wants a peach\n\n| NUMBER\nJanuary | 5\nFebruary | 8\n", "August | 6\n"],
    );
    check_texts(
        "testWORD_diagramData.docx",
        &["From here\n\nTo here\n\nAnd then here.", "regular text in document body"],
    );
    check_texts(
        "testWORD_text_box.docx",
        &[
            "directly in the body",
            "inside of a text box in the body",
            "## Headers and footers\n\n",
            "text box in the header",
            "text box in the footer",
        ],
    );
    check_texts(
        "testComment.docx",
        &["Here is some text.", "## Comments\n\nMichael McCandless: Here is a comment\n"],
    );
    check_texts("footnotes.docx", &["prostoy[^1] text", "## Footnotes\n\n[^1]: snoska"]);
    check_texts("testAltChunkHTML.docx", &["a **emphasized** word", "| ROW 2 | ROW 2 |"]);
}

#[test]
fn slides_have_the_text_beside_their_shapes() {
    check_texts("testPPT_charts.pptx", &["[slide 1]\n", "Chart: wants a peach\n\n| NUMBER\nJanuary | 5\n"]);
    check_texts("testPPT_diagramData.pptx", &["President\n\nVP – HR\n\n", "VP - Marketing"]);
    check_texts("testPPT_comment.pptx", &["subtitle", "Comments:\n\nAllison, Timothy B.: I'm afraid"]);
    check_texts("testPPT_masterFooter.pptx", &["[slide 1]\nMaster footer is here"]);
}

#[test]
fn open_document_files_are_read() {
    check_texts(
        "testODFwithOOo3.odt",
        &[
            "# Apache Tika Test Document\n",
            "This is a rather[^1] difficult",
            "A rectangle",
            "Number | Name\n1 | one embedded\n2 | two embedded\n",
            "## Footnotes\n\n[^1]: This is of course a simple footnote\n",
            "## Comments\n\nBart Hanssens: Tika is part",
        ],
    );
    check_texts("testFooter.odt", &["text on page 2", "## Headers and footers\n\nHere is footer text"]);
    check_texts("LibreOfficeImpress_odp_1.3.odp", &["[slide 1]\n", "An example Impress file", "[slide 2]"]);
    check_texts("testMasterFooter.odp", &["[slide 1]", "[slide master]\nMaster footer is here"]);
    check_texts("testODTMacro.fodt", &["Hello dear user,\n\nClick the smiley\n\n"]);
}

#[test]
fn rich_text_is_read() {
    check_texts(
        "testRTFVarious.rtf",
        &[
            "Here is a text box",
            "Footnote appears here[^1]",
            "This is a hyperlink",
            "Row 1 Col 1 | Row 1 Col 2 | Row 1 Col 3\nRow 2 Col 1 |",
            "ゾルゲと尾崎、淡々と最期",
            "𐌲𐌿𐍄𐌹𐍃𐌺",
            "## Headers and footers\n\nThis is the header text.\n\nThis is the footer text.",
            "[^1]: This is a footnote.",
        ],
    );
    check_texts("testRTF-ms932.rtf", &["こんにちは"]);
    check_texts("testComment.rtf", &["Here is some text.", "Michael McCandless: Here is a comment"]);
}

#[test]
fn documents_before_2007_are_read() {
    check_texts(
        "HeaderFooterUnicode.doc",
        &[
            "GBP - £",
            "# Molière\n",
            "L'Avare ou l'École du mensonge",
            "## Headers and footers",
            "simple header, with a € euro",
            "The footer, with Molière",
        ],
    );
    check_texts(
        "simple-table2.doc",
        &["Row 1/Cell 1 | Row 1/Cell 2 | Row 1/Cell 3\nRow 2/Cell 1 | Row 2/Cell 2 |"],
    );
    check_texts("testComment.doc", &["Here is some text.", "## Comments\n\nHere is a comment"]);
    check_texts("footnote.doc", &["Test text", "## Footnotes", "TestFootnote", "## Endnotes", "TestEndnote"]);
    // The file is shorter than its allocation table says.
    check_texts("47950_normal.doc", &["This is a sample Word document"]);
    check_texts("Word6.doc", &["The quick brown fox jumps over the lazy dog"]);
}

#[test]
fn slides_before_2007_are_read() {
    check_texts(
        "basic_test_ppt_file.ppt",
        &[
            "[slide 1]\nThis is a test title",
            "This is on page 1",
            "Notes:\n\nThese are the notes for page 1",
            "[slide 2]\nThis is the title on page 2",
            "None of them have formatting",
            "again lacking formatting",
        ],
    );
    check_texts(
        "WithComments.ppt",
        &["With a comment on it", "Comment: Administrator: This is a test comment"],
    );
    check_texts("headers_footers.ppt", &["[slide 2]\n", "per-slide footer"]);
}

#[test]
fn outlook_messages_are_read() {
    check_texts(
        "attachment_test_msg.msg",
        &[
            "From: Nicolas1 23456 <nicolas1.23456@free.fr>\nTo: ",
            "Date: 2009-04-22T14:36:33Z\nSubject: test pièce jointe 1\n\ncontenu",
            "Attachment: test-unicode.doc",
            "Attachment: pj1.txt",
        ],
    );
    check_texts(
        "ASCII_CP1251_LCID1049.msg",
        &["Subject: Subject автоматически Subject", "Body автоматически Body"],
    );
    check_texts("HTMLBodyBinary_CP1251.msg", &["HTML автоматически"]);
}

#[test]
fn notebooks_have_cells() {
    for name in ["test3.ipynb", "test4.ipynb"] {
        check_texts(
            name,
            &[
                "[cell 1]\n# nbconvert latex test",
                "**Lorem ipsum**",
                "## Printed Using Python",
                "hello\n```\n\n[cell 5]",
            ],
        );
        let document = extract_file(&format!("collected/{name}")).unwrap();
        assert_eq!(document.title.as_deref(), Some("nbconvert latex test"));
    }
}

#[derive(Deserialize)]
struct ExpectedTable {
    page: usize,
    rows: Vec<Vec<String>>,
}

#[test]
fn cells_of_real_tables_are_right() {
    let folder = fixture_folder().join("tables");
    let expected = fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Vec<ExpectedTable>> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.values().map(Vec::len).sum::<usize>(), 20);
    // Those who annotated the tables put no blanks where a line of a cell ends.
    let join = |cells: &str| cells.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    for (name, tables) in expected {
        let document = extract_file(&format!("tables/{name}")).unwrap();
        for table in tables {
            let lines: Vec<String> = document.parts[table.page - 1].text.lines().map(join).collect();
            let mut from = 0;
            for row in &table.rows {
                let row = join(&row.join("|"));
                let row = row.trim_end_matches('|');
                let found = lines[from..].iter().position(|line| line == row);
                from += 1 + found
                    .unwrap_or_else(|| panic!("{name}, page {}: no row {row}\n{lines:#?}", table.page));
            }
        }
    }
}

/// Replaces all occurrences of a mark.
fn replace(bytes: &[u8], mark: &str, other: &str) -> Vec<u8> {
    let text: String = bytes.iter().copied().map(char::from).collect();
    assert!(text.contains(mark), "{mark}");
    text.replace(mark, other).chars().map(|c| u8::try_from(c).unwrap()).collect()
}

#[test]
fn damaged_pdf_files_are_read_as_far_as_they_go() {
    let whole = fs::read(fixture_folder().join("wheel.pdf")).unwrap();
    let text: String = whole.iter().copied().map(char::from).collect();
    let table = text.find("xref\n").unwrap();
    let read = |bytes: &[u8]| -> Result<String, ExtractError> {
        let document = extractor().extract_text(BinaryFormat::Pdf, bytes)?;
        Ok(document.parts.into_iter().map(|part| part.text).collect())
    };
    for (name, bytes) in [
        ("no directory", whole[..table].to_vec()),
        ("a wrong place of the directory", replace(&whole, "startxref\n", "startxref\n17")),
        ("no end", replace(&whole, "%%EOF", "")),
        ("other line ends", replace(&whole, "\n", "\r\n")),
        ("wrong lengths", replace(&whole, "/Length ", "/Length 9")),
        ("a wrong root", replace(&whole, "/Root ", "/Root 9")),
        ("wrong places", replace(&whole, " 00000 n", "0 00000 n")),
        ("something before it", [b"Received: by mill.example\r\n".repeat(9).as_slice(), &whole].concat()),
        ("no header", [b"%PDF-".as_slice(), &whole[9..]].concat()),
        ("lost ends of objects", replace(&whole, "endobj", "")),
    ] {
        let text = read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        for page in 1..=3 {
            assert!(text.contains(&fact("wheel", page)), "{name}: {text}");
        }
    }
    let cut = read(&whole[..table - 300]).unwrap();
    assert!(cut.contains(&fact("wheel", 1)) && cut.contains(&fact("wheel", 2)), "{cut}");
    assert!(matches!(read(&whole[..400]), Err(ExtractError::Damaged(_))));
}
