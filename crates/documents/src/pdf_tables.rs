//! Table detection on a PDF page, which has only positioned characters and lines. A table is detected by its ruled lines, else by
//! aligned gaps between columns. Text in newspaper columns and lists are excluded.

use std::collections::BTreeMap;

use crate::blocks::{CELL_BORDER, join_words};
use crate::pdf_layout::{Direction, Glyph};

/// The maximum distance of two lines that are joined to one.
const SNAP: f64 = 2.5;
/// The maximum distance between the end of a line and another line that it touches.
const MEET: f64 = 4.0;
/// The minimum length of a ruled line.
const MIN_RULE: f64 = 5.0;
/// The maximum number of joined lines in each direction.
const MAX_LINES: usize = 1_500;
/// The maximum number of ruled tables of a page. A map or a drawing has more.
const MAX_GRIDS: usize = 200;
/// The minimum gap between two columns without a line between them, as a share of the size of the characters.
const MIN_GAP: f64 = 1.1;
/// The maximum gap within a word.
const MAX_WORD_GAP: f64 = 0.12;
/// The minimum number of lines of a table without ruled lines.
const MIN_ROWS: usize = 3;

pub(crate) struct Table {
    pub rows: Vec<String>,
    /// The characters that it has, by their numbers.
    pub glyphs: Vec<usize>,
}

/// A line in parallel to the edges of the page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rule {
    is_horizontal: bool,
    /// Its place across its direction.
    at: f64,
    from: f64,
    to: f64,
}

impl Rule {
    /// Returns the line between two points; `None` if it is slanted, very short, or nowhere.
    pub fn new((x, y): (f64, f64), (other_x, other_y): (f64, f64)) -> Option<Self> {
        let (width, height) = ((other_x - x).abs(), (other_y - y).abs());
        let rule = match width > height {
            true => Self {
                is_horizontal: true,
                at: (y + other_y) / 2.0,
                from: x.min(other_x),
                to: x.max(other_x),
            },
            false => Self {
                is_horizontal: false,
                at: (x + other_x) / 2.0,
                from: y.min(other_y),
                to: y.max(other_y),
            },
        };
        let is_straight = width.min(height) < 1.0 && rule.at.is_finite() && rule.length().is_finite();
        (is_straight && rule.length() > 0.1).then_some(rule)
    }

    pub fn length(&self) -> f64 {
        self.to - self.from
    }

    fn covers(&self, place: f64) -> bool {
        self.from - MEET <= place && place <= self.to + MEET
    }

    fn meets(&self, other: &Self) -> bool {
        self.covers(other.at) && other.covers(self.at)
    }
}

#[derive(Default)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { rules }
    }

    /// Joins the lines of a direction that lie on each other or follow each other.
    fn join(&self, is_horizontal: bool) -> Vec<Rule> {
        let mut rules: Vec<Rule> =
            self.rules.iter().filter(|rule| rule.is_horizontal == is_horizontal).copied().collect();
        rules.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut joined: Vec<Rule> = Vec::new();
        let mut rest = rules.as_mut_slice();
        while let Some(first) = rest.first().map(|rule| rule.at) {
            let count = rest.iter().take_while(|rule| rule.at - first <= SNAP).count();
            let (group, after) = rest.split_at_mut(count);
            group.sort_by(|a, b| a.from.total_cmp(&b.from));
            let at = group.iter().map(|rule| rule.at).sum::<f64>() / count as f64;
            let mut open: Option<Rule> = None;
            for rule in group {
                match &mut open {
                    Some(last) if rule.from <= last.to + MEET => last.to = last.to.max(rule.to),
                    _ => joined.extend(open.replace(Rule { at, ..*rule })),
                }
            }
            joined.extend(open);
            rest = after;
        }
        joined.retain(|rule| rule.length() >= MIN_RULE);
        joined
    }
}

/// Finds the tables of a page whose text has a direction.
pub(crate) fn find_tables(text: &str, glyphs: &[Glyph], direction: Direction, rules: &Rules) -> Vec<Table> {
    let visible: Vec<usize> = (0..glyphs.len())
        .filter(|at| {
            let glyph = &glyphs[*at];
            let is_placed = glyph.left.is_finite() && glyph.baseline.is_finite() && glyph.size > 0.0;
            glyph.direction == direction && is_placed && !text[glyph.range.clone()].trim().is_empty()
        })
        .collect();
    let page = PageText { text, glyphs };
    let mut tables = find_ruled_tables(&page, &visible, rules);
    let used: Vec<bool> =
        tables.iter().flat_map(|table| &table.glyphs).fold(vec![false; glyphs.len()], |mut used, glyph| {
            used[*glyph] = true;
            used
        });
    let rest: Vec<usize> = visible.into_iter().filter(|at| !used[*at]).collect();
    tables.extend(find_aligned_tables(&page, &rest));
    tables
}

struct PageText<'p> {
    text: &'p str,
    glyphs: &'p [Glyph],
}

/// Characters of one line of text, from left to right.
type Line = Vec<usize>;

impl PageText<'_> {
    fn glyph(&self, at: usize) -> &Glyph {
        &self.glyphs[at]
    }

    /// Groups characters into lines, from top to bottom.
    fn split_lines(&self, glyphs: &[usize]) -> Vec<Line> {
        let mut sorted = glyphs.to_vec();
        sorted.sort_by(|a, b| self.glyph(*a).baseline.total_cmp(&self.glyph(*b).baseline));
        let mut lines: Vec<Line> = Vec::new();
        let mut baseline = f64::NEG_INFINITY;
        for at in sorted {
            let glyph = self.glyph(at);
            match lines.last_mut() {
                Some(line) if glyph.baseline - baseline <= glyph.size * 0.4 => line.push(at),
                _ => {
                    lines.push(vec![at]);
                    baseline = glyph.baseline;
                }
            }
        }
        for line in &mut lines {
            line.sort_by(|a, b| self.glyph(*a).left.total_cmp(&self.glyph(*b).left));
        }
        lines
    }

    /// Splits a line at gaps that are wider than `gap` of the size of its characters.
    fn split_segments(&self, line: &[usize], gap: f64) -> Vec<Vec<usize>> {
        let mut segments: Vec<Vec<usize>> = Vec::new();
        let mut right = f64::INFINITY;
        for at in line {
            let glyph = self.glyph(*at);
            match segments.last_mut() {
                Some(segment) if glyph.left - right <= glyph.size * gap => segment.push(*at),
                _ => segments.push(vec![*at]),
            }
            right = if segments.last().is_some_and(|segment| segment.len() == 1) {
                glyph.right
            } else {
                right.max(glyph.right)
            };
        }
        segments
    }

    fn segment_line(&self, line: &[usize]) -> SegmentedLine {
        let first = self.glyph(line[0]);
        SegmentedLine {
            segments: self.split_segments(line, MIN_GAP),
            baseline: first.baseline,
            size: first.size,
        }
    }

    /// Returns the text of characters, line by line.
    fn format(&self, glyphs: &[usize]) -> String {
        let lines = self.split_lines(glyphs);
        let words = lines.iter().flat_map(|line| self.split_segments(line, MAX_WORD_GAP));
        let word = |word: Vec<usize>| -> String {
            word.iter().map(|at| &self.text[self.glyph(*at).range.clone()]).collect()
        };
        join_words(&words.map(word).collect::<Vec<_>>().join(" "))
    }

    /// `true` if the characters of each word are also consecutive in the page's content. Otherwise their positions are unreliable,
    /// and words would be mixed. Text from right to left fails this check and keeps its order.
    fn is_reliable(&self, glyphs: &[usize]) -> bool {
        let (mut pairs, mut mixed) = (0, 0);
        for line in self.split_lines(glyphs) {
            for word in self.split_segments(&line, MAX_WORD_GAP) {
                pairs += word.len() - 1;
                mixed += word.windows(2).filter(|pair| pair[1] < pair[0] || pair[1] - pair[0] > 3).count();
            }
        }
        mixed * 25 <= pairs
    }

    fn bounds(&self, segment: &[usize]) -> (f64, f64) {
        segment
            .iter()
            .map(|at| self.glyph(*at))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(left, right), glyph| {
                (left.min(glyph.left), right.max(glyph.right))
            })
    }
}

/// Lines that meet, and the places of rows and columns that they have.
struct Grid {
    horizontal: Vec<Rule>,
    vertical: Vec<Rule>,
    /// The places between rows, and between columns, with the outer ones.
    tops: Vec<f64>,
    lefts: Vec<f64>,
}

fn find_ruled_tables(page: &PageText<'_>, visible: &[usize], rules: &Rules) -> Vec<Table> {
    let (horizontal, vertical) = (rules.join(true), rules.join(false));
    if horizontal.len() > MAX_LINES || vertical.len() > MAX_LINES {
        return Vec::new();
    }
    let grids = find_grids(&horizontal, &vertical);
    if grids.len() > MAX_GRIDS {
        return Vec::new();
    }
    let mut used = vec![false; page.glyphs.len()];
    let mut tables = Vec::new();
    for mut grid in grids {
        let free: Vec<usize> = visible.iter().copied().filter(|at| !used[*at]).collect();
        let Some(table) = grid.read_table(page, &free) else { continue };
        table.glyphs.iter().for_each(|at| used[*at] = true);
        tables.push(table);
    }
    tables
}

/// Finds the groups of lines that meet.
fn find_grids(horizontal: &[Rule], vertical: &[Rule]) -> Vec<Grid> {
    let mut groups: Vec<usize> = (0..horizontal.len() + vertical.len()).collect();
    for (at, rule) in horizontal.iter().enumerate() {
        for (other, crossing) in vertical.iter().enumerate() {
            if rule.meets(crossing) {
                let (one, two) =
                    (find_group(&mut groups, at), find_group(&mut groups, horizontal.len() + other));
                groups[two] = one;
            }
        }
    }
    let mut grids: Vec<(usize, Grid)> = Vec::new();
    for (at, rule) in horizontal.iter().chain(vertical).enumerate() {
        let group = find_group(&mut groups, at);
        let index = grids.iter().position(|(number, _)| *number == group).unwrap_or_else(|| {
            let grid =
                Grid { horizontal: Vec::new(), vertical: Vec::new(), tops: Vec::new(), lefts: Vec::new() };
            grids.push((group, grid));
            grids.len() - 1
        });
        let grid = &mut grids[index].1;
        if rule.is_horizontal { grid.horizontal.push(*rule) } else { grid.vertical.push(*rule) }
    }
    grids.into_iter().filter_map(|(_, grid)| grid.with_places()).collect()
}

fn find_group(groups: &mut [usize], at: usize) -> usize {
    let mut root = at;
    while groups[root] != root {
        groups[root] = groups[groups[root]];
        root = groups[root];
    }
    root
}

impl Grid {
    /// Adds the places of rows and columns; `None` if there are too few for a table.
    fn with_places(mut self) -> Option<Self> {
        self.tops = places(&self.horizontal, &self.vertical);
        self.lefts = places(&self.vertical, &self.horizontal);
        (self.tops.len() >= 2 && self.lefts.len() >= 3).then_some(self)
    }

    fn read_table(&mut self, page: &PageText<'_>, free: &[usize]) -> Option<Table> {
        let mut glyphs: Vec<usize> = Vec::new();
        let mut bands: Vec<Vec<usize>> = vec![Vec::new(); self.tops.len() - 1];
        for at in free {
            let glyph = page.glyph(*at);
            let is_between = find_band(&self.lefts, (glyph.left + glyph.right) / 2.0).is_some();
            if let Some(row) = find_band(&self.tops, glyph.baseline - glyph.size * 0.3).filter(|_| is_between)
            {
                bands[row].push(*at);
                glyphs.push(*at);
            }
        }
        self.split_columns(page, &bands);
        let columns = self.lefts.len() - 1;
        let mut cells: Vec<Vec<Vec<usize>>> = vec![vec![Vec::new(); columns]; bands.len()];
        let mut first_cells: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
        let open: Vec<Vec<bool>> =
            bands.iter().enumerate().map(|(row, band)| self.find_open_borders(page, row, band)).collect();
        for (row, band) in bands.iter().enumerate() {
            for at in band {
                let glyph = page.glyph(*at);
                let Some(column) = find_band(&self.lefts, (glyph.left + glyph.right) / 2.0) else { continue };
                let first = first_cells.entry((row, column));
                let (row, column) = *first.or_insert_with(|| self.find_cell(&open, row, column));
                cells[row][column].push(*at);
            }
        }
        let mut texts: Vec<Vec<String>> = Vec::new();
        for row in cells {
            texts.extend(split_row(page, &row));
        }
        remove_empty_columns(&mut texts);
        let filled = texts.iter().flatten().filter(|cell| !cell.is_empty()).count();
        let is_table = count_filled_rows(&texts) > 1
            && texts[0].len() > 1
            // A diagram may have lines too.
            && filled * 5 >= texts.len() * texts[0].len()
            && page.is_reliable(&glyphs);
        is_table.then(|| Table { rows: format_rows(&texts), glyphs })
    }

    /// Adds the columns between which there is only a gap, in most of the lines between two ruled ones.
    fn split_columns(&mut self, page: &PageText<'_>, bands: &[Vec<usize>]) {
        let lines: Vec<Line> = bands.iter().flat_map(|band| page.split_lines(band)).collect();
        let mut added = Vec::new();
        for column in self.lefts.windows(2) {
            let is_inside = |at: &usize| {
                let glyph = page.glyph(*at);
                (column[0]..column[1]).contains(&((glyph.left + glyph.right) / 2.0))
            };
            let parts = lines.iter().map(|line| line.iter().copied().filter(is_inside).collect::<Line>());
            let parts: Vec<SegmentedLine> =
                parts.filter(|part| !part.is_empty()).map(|part| page.segment_line(&part)).collect();
            let divided = parts.iter().filter(|part| part.segments.len() > 1).count();
            if parts.len() < MIN_ROWS || divided * 10 < parts.len() * 6 {
                continue;
            }
            let size = parts.iter().map(|line| line.size).fold(0.0, f64::max);
            let columns = find_columns(page, &parts, size);
            added.extend(columns.windows(2).map(|pair| (pair[0].1 + pair[1].0) / 2.0));
        }
        self.lefts.extend(added);
        self.lefts.sort_by(f64::total_cmp);
    }

    /// Returns for each column of a row if it is merged with the column before: text crosses their border, and no line separates
    /// them.
    fn find_open_borders(&self, page: &PageText<'_>, row: usize, band: &[usize]) -> Vec<bool> {
        let middle = middle(&self.tops, row);
        let lines = page.split_lines(band);
        let segments: Vec<(f64, f64)> = lines
            .iter()
            .flat_map(|line| page.split_segments(line, MIN_GAP))
            .map(|segment| page.bounds(&segment))
            .collect();
        let is_open = |place: &f64| {
            !has_rule(&self.vertical, *place, middle)
                && segments.iter().any(|(left, right)| left + 1.0 < *place && *place < right - 1.0)
        };
        self.lefts.iter().map(is_open).collect()
    }

    /// Returns the first cell of a merged cell.
    fn find_cell(&self, open: &[Vec<bool>], row: usize, column: usize) -> (usize, usize) {
        let (mut row, mut column) = (row, column);
        loop {
            if column > 0 && open[row][column] {
                column -= 1;
            } else if row > 0 && !has_rule(&self.horizontal, self.tops[row], middle(&self.lefts, column)) {
                row -= 1;
            } else {
                return (row, column);
            }
        }
    }
}

/// `true` if there is a line at a place that covers another place in its direction.
fn has_rule(rules: &[Rule], at: f64, place: f64) -> bool {
    rules.iter().any(|rule| (rule.at - at).abs() <= SNAP && rule.covers(place))
}

/// Returns the positions of lines, with the ends of the crossing lines: a table may have no line at its edge.
fn places(rules: &[Rule], across: &[Rule]) -> Vec<f64> {
    let ends = across.iter().flat_map(|rule| [rule.from, rule.to]);
    let (first, last) =
        ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(first, last), end| (first.min(end), last.max(end)));
    let mut places: Vec<f64> = rules.iter().map(|rule| rule.at).collect();
    for end in [first, last] {
        if end.is_finite() && places.iter().all(|place| (place - end).abs() > MEET * 2.0) {
            places.push(end);
        }
    }
    places.sort_by(f64::total_cmp);
    places.dedup_by(|a, b| (*a - *b).abs() <= SNAP);
    places
}

fn find_band(places: &[f64], place: f64) -> Option<usize> {
    let after = places.partition_point(|one| *one <= place);
    (after > 0 && after < places.len()).then(|| after - 1)
}

fn middle(places: &[f64], band: usize) -> f64 {
    (places[band] + places[band + 1]) / 2.0
}

/// Returns the texts of a band between two lines: several rows if most of its text lines have more than one column.
fn split_row(page: &PageText<'_>, cells: &[Vec<usize>]) -> Vec<Vec<String>> {
    let whole = || vec![cells.iter().map(|cell| page.format(cell)).collect()];
    let glyphs: Vec<usize> = cells.iter().flatten().copied().collect();
    let lines = page.split_lines(&glyphs);
    let filled = cells.iter().filter(|cell| !cell.is_empty()).count();
    if lines.len() < 3 || filled < 2 {
        return whole();
    }
    let mut columns = vec![0; page.glyphs.len()];
    for (column, cell) in cells.iter().enumerate() {
        cell.iter().for_each(|at| columns[*at] = column);
    }
    let rows: Vec<Vec<Vec<usize>>> = lines
        .iter()
        .map(|line| {
            let mut row = vec![Vec::new(); cells.len()];
            line.iter().for_each(|at| row[columns[*at]].push(*at));
            row
        })
        .collect();
    let is_full =
        |row: &&Vec<Vec<usize>>| row.iter().filter(|cell| !cell.is_empty()).count() * 10 >= filled * 7;
    if rows.iter().filter(is_full).count() * 10 < rows.len() * 7 {
        return whole();
    }
    rows.iter().map(|row| row.iter().map(|cell| page.format(cell)).collect()).collect()
}

fn remove_empty_columns(rows: &mut Vec<Vec<String>>) {
    rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
    let columns = rows.first().map_or(0, Vec::len);
    for column in (0..columns).rev() {
        if rows.iter().all(|row| row[column].is_empty()) {
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }
}

/// Counts the rows with text in more than one cell.
fn count_filled_rows(rows: &[Vec<String>]) -> usize {
    rows.iter().filter(|row| row.iter().filter(|cell| !cell.is_empty()).count() > 1).count()
}

fn format_rows(rows: &[Vec<String>]) -> Vec<String> {
    rows.iter().map(|row| row.join(CELL_BORDER).trim_end_matches([' ', '|']).to_owned()).collect()
}

/// A line of text by its parts between gaps.
struct SegmentedLine {
    segments: Vec<Vec<usize>>,
    baseline: f64,
    size: f64,
}

/// Finds tables without ruled lines: lines that follow each other, with gaps at the same places.
fn find_aligned_tables(page: &PageText<'_>, visible: &[usize]) -> Vec<Table> {
    let lines: Vec<SegmentedLine> =
        page.split_lines(visible).iter().map(|line| page.segment_line(line)).collect();
    let mut tables = Vec::new();
    let mut start = 0;
    while start < lines.len() {
        let length = count_table_lines(&lines[start..]);
        if length >= MIN_ROWS
            && let Some(table) = read_aligned_table(page, &lines[start..start + length])
        {
            tables.push(table);
            start += length;
        } else {
            start += length.max(1);
        }
    }
    tables
}

/// Returns the number of lines from the first one on that may be a table: lines with gaps, with at most one without between two.
fn count_table_lines(lines: &[SegmentedLine]) -> usize {
    let mut count = 0;
    for (at, line) in lines.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &lines[before]);
        if before.is_some_and(|before| line.baseline - before.baseline > line.size.max(before.size) * 3.0) {
            break;
        }
        if line.segments.len() > 1 {
            count = at + 1;
        } else if at == 0 || before.is_some_and(|before| before.segments.len() < 2) {
            break;
        }
    }
    count
}

fn read_aligned_table(page: &PageText<'_>, lines: &[SegmentedLine]) -> Option<Table> {
    let size = lines.iter().map(|line| line.size).fold(0.0, f64::max);
    let columns = find_columns(page, lines, size);
    if columns.len() < 2 {
        return None;
    }
    let mut rows = Vec::new();
    for line in lines {
        let mut row = vec![Vec::new(); columns.len()];
        for segment in &line.segments {
            let (left, right) = page.bounds(segment);
            let overlap = |(from, to): &(f64, f64)| right.min(*to) - left.max(*from);
            let column = (0..columns.len()).max_by(|a, b| {
                // The first one of those that it covers.
                overlap(&columns[*a]).total_cmp(&overlap(&columns[*b])).then(b.cmp(a))
            })?;
            row[column].extend(segment);
        }
        rows.push(row);
    }
    let texts: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| page.format(cell)).collect()).collect();
    let glyphs: Vec<usize> = rows.into_iter().flatten().flatten().collect();
    (is_table(&texts) && page.is_reliable(&glyphs)).then(|| Table { rows: format_rows(&texts), glyphs })
}

/// Finds the columns of lines: ranges between gaps that nearly all lines have.
fn find_columns(page: &PageText<'_>, lines: &[SegmentedLine], size: f64) -> Vec<(f64, f64)> {
    let mut edges: Vec<(f64, i32)> = Vec::new();
    for segment in lines.iter().flat_map(|line| &line.segments) {
        let (left, right) = page.bounds(segment);
        edges.extend([(left, 1), (right, -1)]);
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let allowed = i32::try_from(lines.len() / 8).unwrap_or(0);
    let mut columns: Vec<(f64, f64)> = Vec::new();
    let (mut depth, mut start) = (0, None);
    for (place, change) in edges {
        depth += change;
        match start {
            None if depth > allowed => start = Some(place),
            Some(from) if depth <= allowed => {
                match columns.last_mut() {
                    Some((_, to)) if from - *to < size * 0.5 => *to = place,
                    _ => columns.push((from, place)),
                }
                start = None;
            }
            _ => {}
        }
    }
    columns
}

/// `true` if rows of cells are those of a table, not of text in columns or of a list.
fn is_table(rows: &[Vec<String>]) -> bool {
    let columns = rows[0].len();
    let cells: Vec<&str> =
        rows.iter().flatten().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
    if count_filled_rows(rows) < MIN_ROWS || cells.len() * 2 < rows.len() * columns {
        return false;
    }
    let has_digit = |cell: &str| cell.chars().any(|c| c.is_ascii_digit());
    let later: Vec<&str> =
        rows.iter().flat_map(|row| &row[1..]).map(String::as_str).filter(|cell| !cell.is_empty()).collect();
    let numbers = later.iter().filter(|cell| has_digit(cell) && cell.chars().count() <= 20).count();
    let mean = cells.iter().map(|cell| cell.chars().count()).sum::<usize>() / cells.len();
    let is_label = |row: &&Vec<String>| row[0].chars().count() <= 3;
    let is_list = columns == 2 && rows.iter().filter(is_label).count() * 2 > rows.len();
    match numbers * 2 >= later.len() {
        true => !is_list || mean <= 8,
        false => !is_list && mean <= if columns > 3 { 30 } else { 22 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes lines of text with characters of size 10 that are 5 wide, each 12 below the one before.
    fn write_page(lines: &[&str]) -> (String, Vec<Glyph>) {
        let (mut text, mut glyphs) = (String::new(), Vec::new());
        for (row, line) in lines.iter().enumerate() {
            for (column, c) in line.chars().enumerate() {
                let (start, left) = (text.len(), column as f64 * 5.0);
                text.push(c);
                let baseline = 20.0 + row as f64 * 12.0;
                glyphs.push(Glyph {
                    range: start..text.len(),
                    left,
                    right: left + 5.0,
                    baseline,
                    size: 10.0,
                    direction: Direction::Right,
                });
            }
        }
        (text, glyphs)
    }

    fn read_rows(lines: &[&str], rules: &Rules) -> Vec<String> {
        let (text, glyphs) = write_page(lines);
        find_tables(&text, &glyphs, Direction::Right, rules)
            .into_iter()
            .flat_map(|table| table.rows)
            .collect()
    }

    #[test]
    fn columns_are_told_by_their_gaps() {
        let rows = read_rows(
            &[
                "Some text before",
                "",
                "",
                "",
                "mill         weight    year",
                "wheel one    501       2024",
                "dam          302       2025",
                "gear                   2026",
            ],
            &Rules::default(),
        );
        assert_eq!(
            rows,
            ["mill | weight | year", "wheel one | 501 | 2024", "dam | 302 | 2025", "gear |  | 2026"]
        );
    }

    #[test]
    fn text_in_columns_and_lists_are_no_tables() {
        let column = "The miller opens the sluice early";
        let line = format!("{column}     {column}");
        assert!(read_rows(&[line.as_str(); 5], &Rules::default()).is_empty());
        assert!(
            read_rows(&["1.   Open the sluice.", "2.   Wait for water.", "3.   Grind."], &Rules::default())
                .is_empty()
        );
    }

    #[test]
    fn words_whose_characters_are_mixed_are_no_table() {
        let lines = ["wheel one    501", "dam          302", "gear         402"];
        let (mut text, mut glyphs) = write_page(&lines);
        let (other, mixed) =
            write_page(&["a text at the same place", "b text at the same place", "c text at the same place"]);
        let start = text.len();
        text.push_str(&other);
        let move_range = |glyph: Glyph| Glyph {
            range: glyph.range.start + start..glyph.range.end + start,
            left: glyph.left + 1.0,
            ..glyph
        };
        let tables = |text: &str, glyphs: &[Glyph]| {
            find_tables(text, glyphs, Direction::Right, &Rules::default()).len()
        };
        assert_eq!(tables(&text, &glyphs), 1);
        glyphs.extend(mixed.into_iter().filter(|glyph| glyph.left < 45.0).map(move_range));
        assert_eq!(tables(&text, &glyphs), 0);
    }

    #[test]
    fn ruled_lines_tell_cells_with_several_lines_and_those_that_are_one() {
        let mut rules = Vec::new();
        let mut draw = |from, to| rules.push(Rule::new(from, to).unwrap());
        for y in [10.0, 23.5, 47.5, 59.5] {
            draw((-2.0, y), (104.0, y));
        }
        for (x, from) in [(-2.0, 10.0), (50.0, 23.5), (104.0, 10.0)] {
            draw((x, from), (x, 59.5));
        }
        let rows = read_rows(
            &["  About the wheel", "weight    501 kg", "of it", "year      2024", "outside"],
            &Rules::new(rules),
        );
        assert_eq!(rows, ["About the wheel", "weight of it | 501 kg", "year | 2024"]);
    }
}
