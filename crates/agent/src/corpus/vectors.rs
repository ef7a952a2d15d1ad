//! The vectors of passages, and the search for those that are nearest to a query. A number takes one byte: each vector is scaled to its
//! largest number, which a cosine does not depend on, and the rounding changes cosines in their third digit. So 20,000 passages of 1,536
//! dimensions take 31 MB.

/// The vectors of passages, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassageVectors {
    dimensions: usize,
    numbers: Vec<i8>,
}

impl PassageVectors {
    /// Returns no vectors, of at least one dimension.
    #[must_use]
    pub fn new(dimensions: usize) -> Self {
        Self { dimensions: dimensions.max(1), numbers: Vec::new() }
    }

    /// Adds a vector. Returns `false` if it has another number of dimensions.
    #[must_use]
    pub fn push(&mut self, vector: &[f32]) -> bool {
        if vector.len() != self.dimensions {
            return false;
        }
        let largest = vector.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        let scale = if largest > 0.0 { f32::from(i8::MAX) / largest } else { 0.0 };
        self.numbers.extend(vector.iter().map(|number| (number * scale).round() as i8));
        true
    }

    /// Adds the vectors of [`PassageVectors::to_bytes`]. Returns `false` if they are not as many.
    #[must_use]
    pub fn extend_from_bytes(&mut self, bytes: &[u8], count: usize) -> bool {
        let fits = count.checked_mul(self.dimensions) == Some(bytes.len());
        if fits {
            self.numbers.extend(bytes.iter().map(|byte| byte.cast_signed()));
        }
        fits
    }

    /// The vectors one after the other, a byte for each number.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.numbers.iter().map(|number| number.cast_unsigned()).collect()
    }

    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The number of vectors.
    pub fn len(&self) -> usize {
        self.numbers.len() / self.dimensions
    }

    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The numbers of the vectors that are nearest to a query by cosine, nearest first; equally near ones in their order.
    pub(super) fn list_nearest(&self, query: &[f32], limit: usize) -> Vec<usize> {
        let cosines = self.numbers.chunks_exact(self.dimensions).map(|vector| {
            let mut product = 0.0_f32;
            let mut squares = 0_i32;
            for (number, other) in vector.iter().zip(query) {
                product += f32::from(*number) * other;
                squares += i32::from(*number) * i32::from(*number);
            }
            // The length of the query is the same for all.
            if squares == 0 { f32::MIN } else { product / (squares as f32).sqrt() }
        });
        let mut nearest: Vec<(usize, f32)> = cosines.enumerate().collect();
        nearest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        nearest.into_iter().take(limit).map(|(at, _)| at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_vectors_are_those_with_the_largest_cosine_of_any_length() {
        let mut vectors = PassageVectors::new(2);
        for vector in [[0.0, 0.0], [300.0, 400.0], [0.003, 0.001], [-1.0, 0.0], [0.03, 0.01]] {
            assert!(vectors.push(&vector));
        }
        assert!(!vectors.push(&[1.0]), "another number of dimensions");
        assert_eq!(vectors.list_nearest(&[2.0, 0.0], 9), [2, 4, 1, 3, 0]);
        assert_eq!(vectors.list_nearest(&[2.0, 0.0], 2), [2, 4]);
    }

    #[test]
    fn vectors_are_the_same_after_a_round_trip_through_bytes() {
        let mut vectors = PassageVectors::new(3);
        assert!(vectors.push(&[0.1, -0.2, 0.05]) && vectors.push(&[-1.0, 0.0, 1.0]));
        let mut read = PassageVectors::new(3);
        assert!(read.extend_from_bytes(&vectors.to_bytes(), 2));
        assert_eq!(read, vectors);
        assert!(!read.extend_from_bytes(&[0; 5], 2), "a file that was cut off");
    }
}
