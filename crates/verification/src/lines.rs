//! The interface to the sources of a text: by mark, by line and by search.

use millrace_protocol::result::SourceLines;

/// The target of a citation mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CitedLines {
    /// Lines of a source.
    Lines(SourceLines),
    /// A whole source, by its location.
    Source(String),
}

impl CitedLines {
    /// The location of the source.
    pub fn location(&self) -> &str {
        match self {
            Self::Lines(lines) => &lines.source,
            Self::Source(location) => location,
        }
    }
}

/// The sources that a text is compared with.
pub trait Sources {
    /// The lines or sources that a mark cites; none for an unknown mark.
    fn cited(&self, mark: &str) -> Vec<CitedLines>;

    /// The locations of all sources, those that the author has read first.
    fn locations(&self) -> Vec<String>;

    /// The text of a source; `None` if it is not there or has no text.
    fn text(&self, location: &str) -> Option<&str>;

    /// The lines that share most with a text, best first. `within` restricts them to one source.
    fn search(&self, text: &str, within: Option<&str>) -> Vec<SourceLines>;
}

/// Converts positions in a text from bytes to Unicode characters. Ascending ones cost one pass over the text together.
pub(crate) struct CharacterPositions<'t> {
    text: &'t str,
    bytes: usize,
    characters: usize,
}

impl<'t> CharacterPositions<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { text, bytes: 0, characters: 0 }
    }

    /// The number of characters before a position.
    pub fn before(&mut self, bytes: usize) -> u32 {
        if bytes < self.bytes {
            (self.bytes, self.characters) = (0, 0);
        }
        self.characters += self.text[self.bytes..bytes].chars().count();
        self.bytes = bytes;
        u32::try_from(self.characters).unwrap_or(u32::MAX)
    }
}

/// The most bytes of sources in which code looks for words and figures, which costs up to 0.7 s a megabyte. Beyond them nothing is
/// called missing.
pub(crate) const MAX_BYTES: usize = 8 << 20;

/// `true` if all sources are small enough to be looked through.
pub(crate) fn are_all_read(sources: &dyn Sources, locations: &[String]) -> bool {
    locations.iter().map(|location| sources.text(location).map_or(0, str::len)).sum::<usize>() <= MAX_BYTES
}

/// A single line of a source.
pub(crate) fn one_line(source: &str, line: usize) -> SourceLines {
    let line = u32::try_from(line).unwrap_or(u32::MAX);
    SourceLines { source: source.to_owned(), first_line: line, last_line: line }
}
