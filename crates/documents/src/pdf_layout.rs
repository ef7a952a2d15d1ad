//! The layout of a PDF page: its characters with their positions, and its ruled lines. The text keeps the order of the page's
//! content, with tables as rows.

use std::ops::Range;

use pdf_extract::{ColorSpace, MediaBox, OutputDev, OutputError, Path, PathOp, Transform};

use crate::pdf_tables::{Rule, Rules, Table, find_tables};

/// The maximum numbers of characters and ruled lines of a page on which tables are looked for.
const MAX_GLYPHS: usize = 100_000;
const MAX_RULES: usize = 20_000;
/// The maximum thickness of a filled area that is a line.
const MAX_THICKNESS: f64 = 3.0;

/// A character on a page, in coordinates whose x axis is the direction of its text and whose y axis points to the next line.
#[derive(Debug, Clone)]
pub(crate) struct Glyph {
    /// Its place in the text of the page.
    pub range: Range<usize>,
    pub left: f64,
    pub right: f64,
    pub baseline: f64,
    pub size: f64,
    pub direction: Direction,
}

/// The direction of text on a page. Landscape pages are often rotated portrait pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Right,
    Up,
    Left,
    Down,
}

impl Direction {
    const ALL: [Self; 4] = [Self::Right, Self::Up, Self::Left, Self::Down];

    fn of(transform: &Transform) -> Self {
        let (x, y) = (transform.m11, transform.m12);
        match (x.abs() >= y.abs(), x >= 0.0, y >= 0.0) {
            (true, true, _) => Self::Right,
            (true, false, _) => Self::Left,
            (false, _, true) => Self::Up,
            (false, _, false) => Self::Down,
        }
    }

    /// Rotates a point of the page, whose y axis points up.
    fn turn(self, x: f64, y: f64) -> (f64, f64) {
        match self {
            Self::Right => (x, -y),
            Self::Up => (y, x),
            Self::Left => (-x, y),
            Self::Down => (-y, -x),
        }
    }
}

#[derive(Default)]
pub(crate) struct PageLayout {
    text: String,
    glyphs: Vec<Glyph>,
    /// The ends of the ruled lines, in the axes of the page.
    rules: Vec<[(f64, f64); 2]>,
    last: Option<Last>,
    begins_word: bool,
}

/// The end of the last character.
struct Last {
    right: f64,
    baseline: f64,
    direction: Direction,
}

impl PageLayout {
    /// Returns the text of the page.
    pub fn format(&self) -> String {
        let is_searchable = self.glyphs.len() < MAX_GLYPHS && self.rules.len() < MAX_RULES;
        let count =
            |direction: &Direction| self.glyphs.iter().filter(|glyph| glyph.direction == *direction).count();
        let Some(direction) = Direction::ALL.into_iter().max_by_key(count).filter(|_| is_searchable) else {
            return self.text.clone();
        };
        let turn = |(x, y): (f64, f64)| direction.turn(x, y);
        let rules = Rules::new(
            self.rules.iter().filter_map(|[from, to]| Rule::new(turn(*from), turn(*to))).collect(),
        );
        let tables = find_tables(&self.text, &self.glyphs, direction, &rules);
        if tables.is_empty() { self.text.clone() } else { self.format_with_tables(&tables) }
    }

    /// Writes each table at the position of its first character in the page's content.
    fn format_with_tables(&self, tables: &[Table]) -> String {
        let mut owners: Vec<Option<usize>> = vec![None; self.glyphs.len()];
        for (number, table) in tables.iter().enumerate() {
            table.glyphs.iter().for_each(|glyph| owners[*glyph] = Some(number));
        }
        let mut is_written = vec![false; tables.len()];
        let mut text = String::with_capacity(self.text.len());
        let mut end = 0;
        let mut was_table = false;
        for (glyph, owner) in self.glyphs.iter().zip(owners) {
            match owner {
                None if was_table => text.push_str(&self.text[glyph.range.clone()]),
                None => text.push_str(&self.text[end..glyph.range.end]),
                Some(number) if !is_written[number] => {
                    is_written[number] = true;
                    let trimmed = text.trim_end().len();
                    text.truncate(trimmed);
                    text.push_str(if text.is_empty() { "" } else { "\n\n" });
                    tables[number].rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
                    text.push('\n');
                }
                Some(_) => {}
            }
            was_table = owner.is_some();
            end = glyph.range.end;
        }
        text
    }

    fn add_path(&mut self, transform: &Transform, path: &Path, is_filled: bool) {
        if self.rules.len() >= MAX_RULES {
            return;
        }
        let to_page = |x: f64, y: f64| {
            let right = x * transform.m11 + y * transform.m21 + transform.m31;
            (right, x * transform.m12 + y * transform.m22 + transform.m32)
        };
        let mut edges: Vec<[(f64, f64); 2]> = Vec::new();
        let (mut start, mut from) = ((0.0, 0.0), (0.0, 0.0));
        for operation in &path.ops {
            match *operation {
                PathOp::MoveTo(x, y) => {
                    start = to_page(x, y);
                    from = start;
                }
                PathOp::LineTo(x, y) => {
                    let to = to_page(x, y);
                    edges.push([from, to]);
                    from = to;
                }
                PathOp::CurveTo(.., x, y) => from = to_page(x, y),
                PathOp::Close => {
                    edges.push([from, start]);
                    from = start;
                }
                PathOp::Rect(x, y, width, height) => {
                    let corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)];
                    let corners = corners.map(|(x, y)| to_page(x, y));
                    edges.extend((0..4).map(|at| [corners[at], corners[(at + 1) % 4]]));
                }
            }
        }
        // Skips the short sides of lines that are drawn as thin areas.
        let is_line = |[from, to]: &[(f64, f64); 2]| (from.0 - to.0).hypot(from.1 - to.1) > MAX_THICKNESS;
        self.rules.extend(edges.into_iter().filter(|edge| !is_filled || is_line(edge)));
    }
}

impl OutputDev for PageLayout {
    fn begin_page(
        &mut self,
        _number: u32,
        _media_box: &MediaBox,
        _art_box: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn output_character(
        &mut self,
        transform: &Transform,
        width: f64,
        _spacing: f64,
        font_size: f64,
        character: &str,
    ) -> Result<(), OutputError> {
        let direction = Direction::of(transform);
        let (left, baseline) = direction.turn(transform.m31, transform.m32);
        // The side of a square with the area of the character.
        let area = transform.m11 * transform.m22 - transform.m12 * transform.m21;
        let size = font_size.abs() * area.abs().sqrt();
        if let Some(last) = self.last.take().filter(|_| self.begins_word) {
            let moved = (baseline - last.baseline).abs();
            if last.direction != direction {
                self.text.push('\n');
            } else {
                if moved > size * 1.5 {
                    self.text.push('\n');
                }
                if left < last.right && moved > size * 0.5 {
                    self.text.push('\n');
                }
                if left > last.right + size * 0.1 {
                    self.text.push(' ');
                }
            }
        }
        let start = self.text.len();
        self.text.push_str(character);
        let right = left + width * size;
        self.begins_word = false;
        self.last = Some(Last { right, baseline, direction });
        if self.glyphs.len() < MAX_GLYPHS {
            self.glyphs.push(Glyph { range: start..self.text.len(), left, right, baseline, size, direction });
        }
        Ok(())
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.begins_word = true;
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        Ok(())
    }

    fn stroke(
        &mut self,
        transform: &Transform,
        _space: &ColorSpace,
        _color: &[f64],
        path: &Path,
    ) -> Result<(), OutputError> {
        self.add_path(transform, path, false);
        Ok(())
    }

    fn fill(
        &mut self,
        transform: &Transform,
        _space: &ColorSpace,
        _color: &[f64],
        path: &Path,
    ) -> Result<(), OutputError> {
        self.add_path(transform, path, true);
        Ok(())
    }
}
