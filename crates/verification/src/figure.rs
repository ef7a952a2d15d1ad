//! The figures of the sources, read once and in the order in which they are needed: those that the author has read first.

use std::cell::{LazyCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_figures::{Derivation, Figure, derive_figure, read_figures};
use millrace_protocol::result::SourceLines;

use crate::lines::{MAX_BYTES, Sources, are_all_read, one_line};

/// The figures of a source with their lines.
struct SourceFigures {
    figures: Vec<Figure>,
    lines: Vec<usize>,
}

/// The figures of all sources.
pub(crate) struct FigureIndex<'s> {
    sources: &'s dyn Sources,
    order: Vec<String>,
    read: RefCell<BTreeMap<String, Rc<SourceFigures>>>,
}

/// The places of a statement's figures.
pub(crate) enum FigurePlaces {
    /// Each stands in a line, or follows from some; these are lines with them, and the calculations.
    Found { lines: Vec<SourceLines>, derived: Vec<String> },
    /// No source has these.
    Invented(Vec<String>),
}

impl<'s> FigureIndex<'s> {
    pub fn new(sources: &'s dyn Sources) -> Self {
        Self { sources, order: sources.locations(), read: RefCell::default() }
    }

    /// Looks for the figures of a statement: first in the sources that it cites. `near` are the texts of its lines, from which
    /// a figure may follow; those of `question` may be repeated.
    pub fn find(&self, statement: &str, cited: &[String], near: &[&str], question: &str) -> FigurePlaces {
        let asked = read_figures(question);
        let wanted = read_figures(statement);
        let (mut lines, mut derived, mut invented) = (Vec::new(), Vec::new(), Vec::new());
        // Most figures stand in a line, and then nothing is calculated.
        let terms = LazyCell::new(|| near.iter().flat_map(|text| read_figures(text)).collect::<Vec<_>>());
        for figure in wanted.iter().filter(|figure| !figure.can_be_a_phrase()) {
            let written = statement[figure.range.clone()].trim().to_owned();
            if let Some(line) = self.find_line(figure, cited) {
                lines.push(line);
            } else if let Some(derivation) = derive_figure(figure, &terms) {
                derived.push(describe_derivation(&written, &derivation));
            } else if !figure.is_found_in(&asked) && are_all_read(self.sources, &self.order) {
                invented.push(written);
            }
        }
        match invented.is_empty() {
            true => FigurePlaces::Found { lines, derived },
            false => FigurePlaces::Invented(invented),
        }
    }

    /// The first line that has a figure, in the order of the sources.
    fn find_line(&self, figure: &Figure, cited: &[String]) -> Option<SourceLines> {
        let others = self.order.iter().filter(|location| !cited.contains(location));
        let mut bytes = 0;
        for location in cited.iter().chain(others) {
            bytes += self.sources.text(location).map_or(0, str::len);
            if bytes > MAX_BYTES {
                return None;
            }
            let source = self.figures_of(location);
            if figure.is_found_in(&source.figures) {
                let at = source.figures.iter().position(|stated| figure.is_stated_by(stated));
                let at = at.or_else(|| {
                    source.figures.iter().position(|stated| figure.is_found_in(std::slice::from_ref(stated)))
                });
                return Some(one_line(location, at.map_or(1, |at| source.lines[at])));
            }
        }
        None
    }

    fn figures_of(&self, location: &str) -> Rc<SourceFigures> {
        if let Some(known) = self.read.borrow().get(location) {
            return known.clone();
        }
        let text = self.sources.text(location).unwrap_or_default();
        let figures = read_figures(text);
        let (mut line, mut done) = (1, 0);
        let line_of = |figure: &Figure| {
            line += text.as_bytes()[done..figure.range.start].iter().filter(|byte| **byte == b'\n').count();
            done = figure.range.start;
            line
        };
        let lines = figures.iter().map(line_of).collect();
        let read = Rc::new(SourceFigures { figures, lines });
        self.read.borrow_mut().insert(location.to_owned(), read.clone());
        read
    }
}

fn describe_derivation(written: &str, derivation: &Derivation) -> String {
    format!("{written} = {derivation}")
}
