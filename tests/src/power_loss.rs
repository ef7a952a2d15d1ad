//! A simulated power loss: the newest bytes of each stream in the store are cut off or zeroed, at random lengths. The content
//! of the store at a checkpoint counts as synced and is kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::plans::SeededRandom;

/// The most bytes of a stream that are lost.
const MAX_LOST: u64 = 4_096;

/// The synced content of a store.
#[derive(Debug, Default)]
pub struct SyncedStore {
    /// The lengths of the files with messages.
    blocks: BTreeMap<PathBuf, u64>,
    /// The content of the files with the positions of consumers.
    positions: BTreeMap<PathBuf, Vec<u8>>,
}

impl SyncedStore {
    /// Reads the store.
    #[must_use]
    pub fn read(store: &Path) -> Self {
        let mut synced = Self::default();
        for file in list_files(store) {
            if is_block(&file) {
                let length = fs::metadata(&file).map_or(0, |data| data.len());
                synced.blocks.insert(file, length);
            } else if is_position(&file) {
                let content = fs::read(&file).unwrap_or_default();
                synced.positions.insert(file, content);
            }
        }
        synced
    }

    /// The synced length of a stream's newest block.
    #[must_use]
    pub fn length_of_newest_block(&self, store: &Path, stream: &str) -> u64 {
        self.blocks.get(&find_newest_block(store, stream)).copied().unwrap_or(0)
    }

    /// Loses the newest bytes of the store of a server that does not run. Returns a description of the loss.
    ///
    /// # Panics
    /// A file can't be written.
    pub fn lose_newest_bytes(&self, store: &Path, random: &mut SeededRandom) -> String {
        let (mut newest, mut lost) = (BTreeMap::<PathBuf, PathBuf>::new(), Vec::new());
        for file in list_files(store) {
            if is_block(&file) {
                let folder = file.parent().unwrap_or(store).to_owned();
                let newer = newest.entry(folder).or_insert_with(|| file.clone());
                if block_number(newer) < block_number(&file) {
                    *newer = file;
                }
            } else if is_position(&file) {
                lost.extend(self.lose_position(&file, random));
            }
        }
        lost.extend(newest.values().filter_map(|block| self.lose_end_of_block(block, random)));
        lost.join(", ")
    }

    fn lose_end_of_block(&self, block: &Path, random: &mut SeededRandom) -> Option<String> {
        let length = fs::metadata(block).map_or(0, |data| data.len());
        let synced = self.blocks.get(block).copied().unwrap_or(0);
        let (is_kept, is_zeroed) = (random.next_bool_with_percent(35), random.next_bool_with_percent(25));
        let bytes = (1 + random.next_below(MAX_LOST)).min(length.saturating_sub(synced));
        if is_kept || bytes == 0 {
            return None;
        }
        let file = fs::OpenOptions::new().write(true).open(block).expect("the block can be opened");
        file.set_len(length - bytes).expect("the block can be cut");
        if is_zeroed {
            file.set_len(length).expect("the block can be extended by zeros");
        }
        Some(format!("{bytes} bytes of {}{}", stream_name(block), if is_zeroed { " (zeroed)" } else { "" }))
    }

    /// Restores an older position of a consumer, or removes it.
    fn lose_position(&self, file: &Path, random: &mut SeededRandom) -> Option<String> {
        match (random.next_below(10), self.positions.get(file)) {
            (0..2, _) => {
                fs::remove_file(file).expect("the position can be removed");
                Some(format!("the position {}", stream_name(file)))
            }
            (2..4, Some(older)) => {
                fs::write(file, older).expect("the position can be written");
                Some(format!("the newest position {}", stream_name(file)))
            }
            _ => None,
        }
    }
}

fn is_block(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "blk")
}

fn is_position(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "o.dat")
}

fn block_number(block: &Path) -> u64 {
    block.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or(0)
}

/// The part of a path below the folder of all streams.
fn stream_name(file: &Path) -> String {
    let text = file.display().to_string();
    text.split_once("/streams/").map_or(text.clone(), |(_, name)| name.to_owned())
}

fn list_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(list_files(&entry.path())),
            _ => files.push(entry.path()),
        }
    }
    files.sort();
    files
}

/// Cuts off the end of a stream's newest block, down to this length, in the store of a server that does not run.
///
/// # Panics
/// The stream has no block, or it can't be cut.
pub fn cut_newest_block(store: &Path, stream: &str, length: impl FnOnce(u64) -> u64) {
    let block = find_newest_block(store, stream);
    let old = fs::metadata(&block).expect("the block has a length").len();
    let file = fs::OpenOptions::new().write(true).open(&block).expect("the block can be opened");
    file.set_len(length(old)).expect("the block can be cut");
}

/// Flips a bit in the middle of a stream's newest block.
///
/// # Panics
/// The stream has no block, or it can't be written.
pub fn flip_bit(store: &Path, stream: &str, at: impl FnOnce(usize) -> usize) {
    let block = find_newest_block(store, stream);
    let mut bytes = fs::read(&block).expect("the block can be read");
    let at = at(bytes.len());
    bytes[at] ^= 1;
    fs::write(&block, bytes).expect("the block can be written");
}

fn find_newest_block(store: &Path, stream: &str) -> PathBuf {
    let folder = format!("/streams/{stream}/msgs/");
    let blocks = list_files(store).into_iter().filter(|file| is_block(file));
    let of_stream = blocks.filter(|block| block.display().to_string().contains(&folder));
    of_stream.max_by_key(|block| block_number(block)).expect("the stream has a block")
}

/// The time at which the position of a consumer (`STREAM/obs/CONSUMER`) was written.
#[must_use]
pub fn position_written_at(store: &Path, consumer: &str) -> Option<SystemTime> {
    let folder = format!("/streams/{consumer}/");
    let mut files = list_files(store).into_iter().filter(|file| is_position(file));
    files.find(|file| file.display().to_string().contains(&folder))?.metadata().ok()?.modified().ok()
}
