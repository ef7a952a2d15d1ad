//! A bounded buffer for the output of a command: it keeps the head and the tail and counts the bytes in between.

use std::collections::VecDeque;

/// Maximum size of the output in bytes.
pub const MAX_OUTPUT: usize = 100_000;

#[derive(Debug)]
pub(super) struct OutputBuffer {
    half_size: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
}

impl Default for OutputBuffer {
    fn default() -> Self {
        Self::new(MAX_OUTPUT)
    }
}

impl OutputBuffer {
    fn new(max_size: usize) -> Self {
        Self { half_size: max_size / 2, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.half_size - self.head.len()));
        self.head.extend_from_slice(head);
        // If the rest is longer than the tail, only its end is kept.
        let skipped = rest.len().saturating_sub(self.half_size);
        self.tail.extend(&rest[skipped..]);
        let over = self.tail.len().saturating_sub(self.half_size);
        self.tail.drain(..over);
        self.dropped += (skipped + over) as u64;
    }

    /// Returns the text, with a note in place of omitted bytes. Invalid UTF-8 is shown as `�`.
    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[… {} bytes omitted …]\n{tail}", self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(max_size: usize, pieces: &[&str]) -> String {
        let mut buffer = OutputBuffer::new(max_size);
        for piece in pieces {
            buffer.push(piece.as_bytes());
        }
        buffer.text()
    }

    #[test]
    fn output_within_the_limit_is_kept() {
        assert_eq!(buffer(10, &[]), "");
        assert_eq!(buffer(10, &["abc", "defg", "hij"]), "abcdefghij");
        assert_eq!(buffer(10, &["ab", "äö"]), "abäö");
        assert_eq!(buffer(4, &["aä", "b"]), "aäb", "a character may span head and tail");
    }

    #[test]
    fn long_output_keeps_its_head_and_tail() {
        let expected = "abcde\n[… 16 bytes omitted …]\nvwxyz";
        let alphabet = "abcdefghijklmnopqrstuvwxyz";
        assert_eq!(buffer(10, &[alphabet]), expected);
        let letters: Vec<String> = alphabet.chars().map(String::from).collect();
        assert_eq!(buffer(10, &letters.iter().map(String::as_str).collect::<Vec<_>>()), expected);
    }
}
