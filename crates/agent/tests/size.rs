//! Measures how long a large set of documents takes to index and to search. Run it with
//! `cargo test --release -p millrace-agent --test it size -- --ignored --nocapture`.

use std::fmt::Write;
use std::time::Instant;

use millrace_agent::corpus::{Corpus, InputFile};

/// Text that resembles natural language: words drawn from a skewed distribution, in sentences and paragraphs.
fn document(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut text = String::with_capacity(bytes + 64);
    let mut words = 0_u64;
    while text.len() < bytes {
        let (a, b) = (draw() % 30_000, draw() % 30_000);
        write!(text, "w{}", a.min(b)).unwrap();
        words += 1;
        text.push_str(match words {
            words if words % 120 == 0 => ".\n\n",
            words if words % 12 == 0 => "\n",
            _ => " ",
        });
    }
    text.into_bytes()
}

fn files(count: u64, bytes: usize) -> Vec<InputFile> {
    (0..count).map(|n| InputFile { path: format!("d{n:05}.txt"), bytes: document(n + 1, bytes) }).collect()
}

#[test]
#[ignore = "prints figures; takes seconds, in a release build"]
fn thousand_documents_are_indexed_and_searched_quickly() {
    let cache = tempfile::tempdir().unwrap();
    let documents = files(1_000, 50_000);

    let start = Instant::now();
    let memory = Corpus::build_or_load(documents.clone(), None).unwrap();
    println!("1,000 x 50 KB in memory: {:.2?}", start.elapsed());
    drop(memory);

    let start = Instant::now();
    let built = Corpus::build_or_load(documents.clone(), Some(cache.path())).unwrap();
    println!("1,000 x 50 KB to the cache: {:.2?}", start.elapsed());
    drop(built);

    let start = Instant::now();
    let corpus = Corpus::build_or_load(documents, Some(cache.path())).unwrap();
    println!("from the cache, hashes included: {:.2?}", start.elapsed());

    let queries = ["w17 w4000 w25000", "w1 w2 w3 w4 w5", "w29000", "\"w5 w9\" w12"];
    for query in queries {
        let start = Instant::now();
        let hits = (0..20).map(|_| corpus.search(query, 20, 2).hits.len()).sum::<usize>() / 20;
        println!("{query:20} {hits:3} passages in {:.2?}", start.elapsed() / 20);
    }
}
