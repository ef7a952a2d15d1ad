//! What a command says, bounded: the head and the tail are kept, the middle is counted.

use std::collections::VecDeque;

/// The most bytes of a command's output that are kept.
pub const MAX_OUTPUT: usize = 100_000;

/// The head and tail of a stream.
#[derive(Debug)]
pub(super) struct Capture {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Default for Capture {
    fn default() -> Self {
        Self::new(MAX_OUTPUT)
    }
}

impl Capture {
    fn new(most: usize) -> Self {
        Self { half: most / 2, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(head);
        // Of what is longer than the tail only the end can stay.
        let skipped = rest.len().saturating_sub(self.half);
        self.tail.extend(&rest[skipped..]);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.dropped += (skipped + over) as u64;
    }

    /// The text, with what is missing named in its place. Bytes that are no text are shown as `�`.
    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[… {} bytes left out …]\n{tail}", self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(most: usize, pieces: &[&str]) -> String {
        let mut capture = Capture::new(most);
        for piece in pieces {
            capture.push(piece.as_bytes());
        }
        capture.text()
    }

    #[test]
    fn what_fits_is_kept_whole_however_it_comes() {
        assert_eq!(capture(10, &[]), "");
        assert_eq!(capture(10, &["abc", "defg", "hij"]), "abcdefghij");
        assert_eq!(capture(10, &["ab", "äö"]), "abäö");
        assert_eq!(capture(4, &["aä", "b"]), "aäb", "a character may span head and tail");
    }

    #[test]
    fn of_a_flood_the_head_and_the_tail_stay() {
        let expected = "abcde\n[… 16 bytes left out …]\nvwxyz";
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        assert_eq!(capture(10, &[alphabet]), expected);
        let letters: Vec<String> = alphabet.chars().map(String::from).collect();
        assert_eq!(capture(10, &letters.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }
}
