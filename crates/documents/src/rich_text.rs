//! Text of RTF documents, a stream of groups and control words. The parser keeps the open groups on the heap and runs in linear
//! time.

use encoding_rs::{Encoding, WINDOWS_1252};

use crate::blocks::{CELL_BORDER, append_section, format_comment, join_words};
use crate::markdown::html_to_markdown;
use crate::{ExtractError, ExtractedText};

pub(crate) const MARK: &[u8] = b"{\\rtf";
/// The maximum number of groups that are open at once.
const MAX_DEPTH: usize = 10_000;
/// The maximum nesting of HTML in RTF.
const MAX_NESTING: usize = 500;
/// Groups without document text. Groups that begin with `\*` are skipped too, unless they are in [`KEPT`].
const SKIPPED: [&str; 26] = [
    "fonttbl",
    "colortbl",
    "stylesheet",
    "pict",
    "listtable",
    "listoverridetable",
    "revtbl",
    "rsidtbl",
    "themedata",
    "colorschememapping",
    "datastore",
    "latentstyles",
    "xmlnstbl",
    "generator",
    "fldinst",
    "objdata",
    "objclass",
    "listtext",
    "pntext",
    "pnseclvl",
    "nonshppict",
    "filetbl",
    "mmathPr",
    "sp",
    "shprslt",
    "do",
];
/// Groups with text that begin with `\*`.
const KEPT: [&str; 4] = ["shpinst", "shptxt", "annotation", "atnauthor"];

#[derive(Debug, Default)]
pub(crate) struct RichText {
    pub title: Option<String>,
    pub text: String,
    /// `text` is HTML that a mail program encapsulated in RTF.
    pub is_html: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Body,
    Footnote,
    Comment,
    CommentAuthor,
    Edge,
    /// Facts about the document, of which only the title is of use.
    Info,
    Title,
    FontTable,
    /// The tags of HTML in RTF.
    HtmlTag,
    Skipped,
}

#[derive(Debug, Clone)]
struct Group {
    target: Target,
    /// The number of fallback characters after a Unicode character.
    fallback_length: usize,
    encoding: &'static Encoding,
    /// The text is a fallback for the encapsulated HTML.
    is_hidden_by_html: bool,
    /// No control word of the group was read yet; the first one decides its target.
    is_new: bool,
    /// It began with `\*`.
    is_optional: bool,
    heading: Option<usize>,
    is_in_table: bool,
}

/// Extracts an RTF document.
pub(crate) fn extract_document(bytes: &[u8]) -> Result<ExtractedText, ExtractError> {
    let RichText { title, text, is_html } = format_rich_text(bytes)?;
    let text = if is_html { convert_html(&text)? } else { text };
    Ok(ExtractedText::from_single_text(title, text))
}

/// Converts encapsulated HTML, or the HTML body of a message.
pub(crate) fn convert_html(html: &str) -> Result<String, ExtractError> {
    html_to_markdown(html, &["script", "style", "title", "img"], MAX_NESTING)
        .map_err(|fault| ExtractError::Damaged(format!("its HTML: {fault}")))
}

/// Reads an RTF document.
pub(crate) fn format_rich_text(bytes: &[u8]) -> Result<RichText, ExtractError> {
    let mut reader = Reader::new(bytes);
    reader.read()?;
    Ok(reader.finish())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    group: Group,
    stack: Vec<Group>,
    /// The encodings of fonts, by number.
    fonts: Vec<(i32, &'static Encoding)>,
    font: i32,
    default_encoding: &'static Encoding,
    /// Bytes of the document's character set that are not decoded yet.
    pending: Vec<u8>,
    /// The number of fallback characters that are still to be skipped.
    to_skip: usize,
    high_surrogate: Option<u16>,
    paragraph: String,
    cells: Vec<String>,
    is_table: bool,
    text: String,
    title: String,
    note: String,
    notes: Vec<String>,
    author: String,
    comment: String,
    comments: Vec<String>,
    edge: String,
    edges: Vec<String>,
    is_html: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let group = Group {
            target: Target::Body,
            fallback_length: 1,
            encoding: WINDOWS_1252,
            is_hidden_by_html: false,
            is_new: false,
            is_optional: false,
            heading: None,
            is_in_table: false,
        };
        Self {
            bytes,
            at: 0,
            group,
            stack: Vec::new(),
            fonts: Vec::new(),
            font: 0,
            default_encoding: WINDOWS_1252,
            pending: Vec::new(),
            to_skip: 0,
            high_surrogate: None,
            paragraph: String::new(),
            cells: Vec::new(),
            is_table: false,
            text: String::new(),
            title: String::new(),
            note: String::new(),
            notes: Vec::new(),
            author: String::new(),
            comment: String::new(),
            comments: Vec::new(),
            edge: String::new(),
            edges: Vec::new(),
            is_html: false,
        }
    }

    fn read(&mut self) -> Result<(), ExtractError> {
        while let Some(byte) = self.next_byte() {
            match byte {
                b'{' => {
                    self.decode_pending();
                    self.to_skip = 0;
                    if self.stack.len() >= MAX_DEPTH {
                        return Err(ExtractError::Damaged(format!(
                            "it is nested more than {MAX_DEPTH} deep"
                        )));
                    }
                    self.stack.push(self.group.clone());
                    self.group.is_new = true;
                }
                b'}' => {
                    self.decode_pending();
                    self.to_skip = 0;
                    self.close_group();
                }
                b'\\' => self.read_control(),
                b'\r' | b'\n' | 0 => {}
                byte => self.push_byte(byte),
            }
        }
        self.decode_pending();
        Ok(())
    }

    fn next_byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte
    }

    fn read_control(&mut self) {
        let Some(first) = self.next_byte() else { return };
        if !first.is_ascii_alphabetic() {
            return self.apply_symbol(first);
        }
        let start = self.at - 1;
        let is_letter = |byte: &u8| byte.is_ascii_alphabetic();
        let length = self.bytes[start..].iter().take_while(|byte| is_letter(byte)).count().min(32);
        let word = std::str::from_utf8(&self.bytes[start..start + length]).unwrap_or_default();
        self.at = start + length;
        let is_negative = self.bytes.get(self.at) == Some(&b'-');
        let digits_at = self.at + usize::from(is_negative);
        let digits = self.bytes[digits_at.min(self.bytes.len())..].iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&self.bytes[digits_at.min(self.bytes.len())..][..digits.min(10)]);
        let number: Option<i32> = number.ok().and_then(|digits| digits.parse().ok());
        let number = if is_negative { number.map(|number: i32| -number) } else { number };
        if digits > 0 {
            self.at = digits_at + digits;
        }
        if self.bytes.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.apply_word(word, number);
    }

    fn apply_symbol(&mut self, symbol: u8) {
        match symbol {
            b'\'' => {
                let hex = self.bytes.get(self.at..self.at + 2).and_then(|hex| std::str::from_utf8(hex).ok());
                if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    self.at += 2;
                    self.push_byte(byte);
                }
            }
            b'*' => self.group.is_optional = self.group.is_new,
            b'\\' | b'{' | b'}' => self.push_byte(symbol),
            b'~' => self.push_text("\u{a0}"),
            b'_' => self.push_text("-"),
            b'\r' | b'\n' => self.end_paragraph(),
            _ => {}
        }
    }

    fn apply_word(&mut self, word: &'a str, number: Option<i32>) {
        if word == "bin" {
            self.at = self.at.saturating_add(usize::try_from(number.unwrap_or(0)).unwrap_or(0));
            return;
        }
        if word != "u" {
            self.decode_pending();
        }
        if self.open_target(word) {
            return;
        }
        match word {
            "ansicpg" => self.set_code_page(number),
            "mac" => self.set_encoding(encoding_rs::MACINTOSH),
            "pc" | "pca" => self.set_encoding(encoding_rs::IBM866),
            "deff" => self.font = number.unwrap_or(0),
            "f" => self.set_font(number.unwrap_or(0)),
            "fcharset" if self.group.target == Target::FontTable => self.add_font(number.unwrap_or(0)),
            "plain" => self.group.encoding = self.default_encoding,
            "uc" => self.group.fallback_length = usize::try_from(number.unwrap_or(1)).unwrap_or(1).min(8),
            "u" => self.push_unicode(number.unwrap_or(0)),
            "par" | "sect" | "page" => self.end_paragraph(),
            "line" | "lbr" => self.push_text("\n"),
            "tab" => self.push_text("\t"),
            "cell" | "nestcell" => self.end_cell(),
            "row" | "nestrow" => self.end_row(),
            "outlinelevel" => {
                self.group.heading = usize::try_from(number.unwrap_or(9)).ok().filter(|at| *at < 6)
            }
            "intbl" => self.group.is_in_table = true,
            "pard" => (self.group.heading, self.group.is_in_table) = (None, false),
            "emdash" => self.push_text("—"),
            "endash" => self.push_text("–"),
            "lquote" => self.push_text("‘"),
            "rquote" => self.push_text("’"),
            "ldblquote" => self.push_text("“"),
            "rdblquote" => self.push_text("”"),
            "bullet" => self.push_text("•"),
            "emspace" | "enspace" | "qmspace" => self.push_text(" "),
            "fromhtml" => self.is_html = true,
            "htmlrtf" => self.group.is_hidden_by_html = number != Some(0),
            _ => {}
        }
    }

    /// Sets the target of a group by a control word; `true` if the word is such a one.
    fn open_target(&mut self, word: &str) -> bool {
        self.group.is_new = false;
        let is_optional = std::mem::take(&mut self.group.is_optional);
        if self.group.target == Target::Skipped {
            return true;
        }
        let target = match word {
            "fonttbl" => Target::FontTable,
            "footnote" => Target::Footnote,
            "annotation" => Target::Comment,
            "atnauthor" => Target::CommentAuthor,
            "header" | "headerf" | "headerl" | "headerr" | "footer" | "footerf" | "footerl" | "footerr" => {
                Target::Edge
            }
            "info" => Target::Info,
            "title" if self.group.target == Target::Info => Target::Title,
            "htmltag" if self.is_html => Target::HtmlTag,
            word if SKIPPED.contains(&word) || is_optional && !KEPT.contains(&word) => Target::Skipped,
            _ => return false,
        };
        self.group.target = target;
        true
    }

    fn set_code_page(&mut self, number: Option<i32>) {
        let page = number.and_then(|number| u16::try_from(number).ok());
        if let Some(encoding) = page.and_then(codepage::to_encoding) {
            self.set_encoding(encoding);
        }
    }

    fn set_encoding(&mut self, encoding: &'static Encoding) {
        self.default_encoding = encoding;
        self.group.encoding = encoding;
    }

    /// Adds the font that is being declared, by its Windows character set.
    fn add_font(&mut self, charset: i32) {
        let page = match charset {
            77 => return self.fonts.push((self.font, encoding_rs::MACINTOSH)),
            128 => 932,
            129 => 949,
            134 => 936,
            136 => 950,
            161 => 1253,
            162 => 1254,
            163 => 1258,
            177 => 1255,
            178 => 1256,
            186 => 1257,
            204 => 1251,
            222 => 874,
            238 => 1250,
            0 => 1252,
            _ => return,
        };
        if let Some(encoding) = codepage::to_encoding(page) {
            self.fonts.push((self.font, encoding));
        }
    }

    fn set_font(&mut self, number: i32) {
        self.font = number;
        if self.group.target != Target::FontTable {
            let known = self.fonts.iter().find(|(font, _)| *font == number);
            self.group.encoding = known.map_or(self.default_encoding, |(_, encoding)| encoding);
        }
    }

    fn push_byte(&mut self, byte: u8) {
        match self.to_skip {
            0 => self.pending.push(byte),
            skipped => self.to_skip = skipped - 1,
        }
    }

    fn push_unicode(&mut self, number: i32) {
        self.decode_pending();
        self.to_skip = self.group.fallback_length;
        // Numbers above 32767 are written as negative ones.
        let Ok(unit) = u16::try_from(number.rem_euclid(0x1_0000)) else { return };
        let units = [self.high_surrogate.take().unwrap_or(unit), unit];
        match unit {
            0xd800..=0xdbff => self.high_surrogate = Some(unit),
            0xdc00..=0xdfff => self.push_text(&String::from_utf16_lossy(&units)),
            // Symbol fonts have their characters in a private area.
            0xf000..=0xf0ff => {}
            unit => self.push_text(&String::from_utf16_lossy(&[unit])),
        }
    }

    fn decode_pending(&mut self) {
        if !self.pending.is_empty() {
            let bytes = std::mem::take(&mut self.pending);
            let text = self.group.encoding.decode_without_bom_handling(&bytes).0;
            self.push_text(&text);
        }
    }

    fn push_text(&mut self, text: &str) {
        if self.group.is_hidden_by_html && self.is_html {
            return;
        }
        match self.group.target {
            Target::Body | Target::HtmlTag => self.paragraph.push_str(text),
            Target::Footnote => self.note.push_str(text),
            Target::Comment => self.comment.push_str(text),
            Target::CommentAuthor => self.author.push_str(text),
            Target::Edge => self.edge.push_str(text),
            Target::Title => self.title.push_str(text),
            Target::FontTable | Target::Info | Target::Skipped => {}
        }
    }

    fn end_paragraph(&mut self) {
        self.decode_pending();
        match self.group.target {
            Target::Body if self.is_html => self.push_text("\n"),
            // A paragraph within a cell.
            Target::Body if self.group.is_in_table || !self.cells.is_empty() => self.paragraph.push(' '),
            Target::Body => {
                let paragraph = std::mem::take(&mut self.paragraph);
                let text = match self.group.heading {
                    Some(level) => format!("{} {}", "#".repeat(level + 1), join_words(&paragraph)),
                    None => paragraph.clone(),
                };
                if !paragraph.trim().is_empty() {
                    self.end_table();
                    self.text.push_str(&format!("{text}\n\n"));
                }
            }
            Target::HtmlTag => self.push_text("\n"),
            Target::Footnote | Target::Comment | Target::CommentAuthor | Target::Edge | Target::Title => {
                self.push_text(" ");
            }
            Target::FontTable | Target::Info | Target::Skipped => {}
        }
    }

    fn end_cell(&mut self) {
        if self.group.target == Target::Body && !self.is_html {
            let cell = std::mem::take(&mut self.paragraph);
            self.cells.push(join_words(&cell));
        }
    }

    fn end_row(&mut self) {
        let cells = std::mem::take(&mut self.cells);
        if cells.iter().any(|cell| !cell.is_empty()) {
            self.is_table = true;
            self.text.push_str(&format!("{}\n", cells.join(CELL_BORDER)));
        }
    }

    fn end_table(&mut self) {
        if std::mem::take(&mut self.is_table) {
            self.text.push('\n');
        }
    }

    fn close_group(&mut self) {
        let Some(outer) = self.stack.pop() else { return };
        let closed = std::mem::replace(&mut self.group, outer);
        if closed.target == self.group.target {
            return;
        }
        match closed.target {
            Target::Footnote => {
                let note = join_words(&std::mem::take(&mut self.note));
                self.notes.push(note);
                let mark = format!("[^{}]", self.notes.len());
                self.push_text(&mark);
            }
            Target::Comment => {
                let (author, text) = (std::mem::take(&mut self.author), std::mem::take(&mut self.comment));
                self.comments.push(format_comment(&author, &text));
            }
            Target::Edge => {
                let edge = join_words(&std::mem::take(&mut self.edge));
                if !edge.is_empty() && !self.edges.contains(&edge) {
                    self.edges.push(edge);
                }
            }
            Target::Body
            | Target::CommentAuthor
            | Target::Title
            | Target::Info
            | Target::FontTable
            | Target::HtmlTag
            | Target::Skipped => {}
        }
    }

    fn finish(mut self) -> RichText {
        if self.is_html {
            return RichText { title: None, text: self.paragraph, is_html: true };
        }
        let rest: Vec<String> = std::mem::take(&mut self.cells);
        self.paragraph = [rest.join(CELL_BORDER), std::mem::take(&mut self.paragraph)].concat();
        (self.group.target, self.group.is_in_table) = (Target::Body, false);
        self.end_paragraph();
        self.end_table();
        let numbered = self.notes.iter().enumerate();
        let notes: String = numbered.map(|(at, note)| format!("[^{}]: {note}\n\n", at + 1)).collect();
        let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n\n")).collect::<String>();
        let mut text = self.text;
        append_section(&mut text, "Headers and footers", &lines(&self.edges));
        append_section(&mut text, "Footnotes", &notes);
        append_section(&mut text, "Comments", &lines(&self.comments));
        let title = Some(self.title.trim().to_owned()).filter(|title| !title.is_empty());
        RichText { title, text, is_html: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rtf: &str, expected: &str) {
        assert_eq!(format_rich_text(rtf.as_bytes()).unwrap().text, expected, "{rtf}");
    }

    #[test]
    fn text_of_any_character_set_is_read() {
        check(r"{\rtf1\ansi\ansicpg1252 Gr\'fc\'dfe \u8211\'96 \u-3913?\u10004?\par}", "Grüße – ✔\n\n");
        check(
            r"{\rtf1\ansi{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset204 B;}}\f1 \'cc\'e8\'f0\f0\'e9}",
            "Мирé\n\n",
        );
        check(r"{\rtf1\ansi\ansicpg932 \'93\'fa\'96\'7b{\uc2\u-10179\'81\'48\u-8704\'81\'48}}", "日本😀\n\n");
        check(r"{\rtf1\mac\'8e}", "é\n\n");
    }

    #[test]
    fn rows_notes_comments_and_headers_are_written() {
        check(
            r"{\rtf1{\header Mill\par}{\info{\title No text}}a{\footnote{\super *}of it}\par\trowd b\cell c\par d\cell\row e\par{\*\atnauthor Mia}{\*\annotation why?}{\*\unknown no}{\field{\*\fldinst HYPERLINK x}{\fldrslt link}}}",
            "a[^1]\n\nb | c d\n\ne\n\nlink\n\n## Headers and footers\n\nMill\n\n## Footnotes\n\n[^1]: *of it\n\n\
             ## Comments\n\nMia: why?\n\n",
        );
    }

    #[test]
    fn mark_of_ignorable_groups_counts_at_their_beginning_only() {
        check(r"{\rtf1{\b\*\cs7 a}{\*\cs7 b}}", "a\n\n");
    }

    #[test]
    fn damaged_files_are_read_or_refused() {
        for text in [
            r"{\rtf1 a",
            r"}}{\rtf1 \'",
            r"{\rtf1\bin999999999999 a}",
            r"{\rtf1\u",
            r"{\rtf1\u99999999999999",
        ] {
            assert!(format_rich_text(text.as_bytes()).is_ok(), "{text}");
        }
        assert!(format_rich_text("{".repeat(20_000).as_bytes()).is_err());
    }
}
