//! The secrets that this process knows: keys, values of headers and variables that it passes on, credentials in URLs. Others may send
//! them back, so they are removed where anything from outside enters: the log of runs, lines of logs, and answers.
//!
//! A secret is found in every encoding that echoes use: as it is, escaped for URLs, JSON, HTML or `Debug` output, also partly and more than
//! once, in hexadecimal digits, and in Base64 at any place. Its beginning is found at the end of a text that was cut. A text that arrives
//! in pieces goes through a [`PieceRedactor`].
//!
//! # Invariants
//!
//! - I30: No key appears in an error, a `Debug` output, a recording, a line of a log, the log of a run, or a file of a run that a
//!   program wrote.
//!   (`protocol/src/secrets.rs::planted_secrets_are_found_in_all_encodings`,
//!   `crates/models/tests/conformance/faults.rs::errors_never_contain_the_api_key`,
//!   `crates/models/src/wire/mod.rs::a_displayed_endpoint_contains_no_key`,
//!   `crates/models/tests/factory.rs::cassettes_contain_no_api_key`,
//!   `crates/models/tests/conformance/faults.rs::redirects_are_not_followed`,
//!   `cli/tests/secrets.rs::planted_secrets_are_in_nothing_that_is_kept`,
//!   `worker/tests/program_files.rs::secrets_in_files_of_a_program_are_not_kept`)

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// The replacement for a secret.
pub const HIDDEN: &str = "[hidden]";

/// Shorter values are not secret (LM Studio's usual key is a word), and removing them would mutilate texts.
const MIN_SECRET_LENGTH: usize = 8;
/// The maximum length of an escape of a character.
const MAX_ESCAPE: usize = 14;
/// The minimum length of a value of letters and digits that counts as a credential under any name.
const RANDOM_LENGTH: usize = 16;
/// The minimum length of a value with other characters that counts as a password under any name.
const PASSWORD_LENGTH: usize = 12;

/// Prefixes of API keys of well-known providers.
const KEY_PREFIXES: [&str; 14] = [
    "sk-", "sk_", "pk-", "pk_", "gsk_", "xai-", "hf_", "r8_", "nvapi-", "pplx-", "AIza", "AKIA", "ghp_",
    "eyJ",
];

/// Words that precede a credential.
const CREDENTIAL_LABELS: [&str; 10] = [
    "bearer",
    "basic",
    "authorization",
    "x-api-key",
    "api-key",
    "api_key",
    "apikey",
    "x-goog-api-key",
    "key",
    "password",
];

/// Words in the names of variables, parameters and arguments whose values are secret. The last four may also end a word.
const SECRET_NAMES: [&str; 19] = [
    "auth",
    "authorization",
    "code",
    "cookie",
    "credential",
    "credentials",
    "dsn",
    "jwt",
    "pass",
    "passphrase",
    "passwd",
    "pat",
    "pwd",
    "session",
    "sig",
    "key",
    "password",
    "secret",
    "token",
];

/// Beginnings of the names of headers whose values are not secret.
const PUBLIC_HEADERS: [&str; 12] = [
    "accept",
    "anthropic-",
    "cache-control",
    "connection",
    "content-",
    "host",
    "openai-",
    "origin",
    "referer",
    "traceparent",
    "user-agent",
    "x-title",
];

static KNOWN: RwLock<Option<Arc<SecretRedactor>>> = RwLock::new(None);

/// Adds secrets to those that this process knows.
pub fn remember_secrets(secrets: &SecretRedactor) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let mut all = known.as_deref().cloned().unwrap_or_default();
    secrets.values.iter().for_each(|value| all.insert(value));
    *known = Some(Arc::new(all));
}

fn known_secrets() -> Option<Arc<SecretRedactor>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns a text without the secrets that this process knows.
#[must_use]
pub fn redact_text(text: &str) -> Cow<'_, str> {
    match known_secrets().map(|known| known.redact_bytes(text.as_bytes()).into_owned()) {
        Some(redacted) if redacted != text.as_bytes() => {
            String::from_utf8_lossy(&redacted).into_owned().into()
        }
        Some(_) | None => text.into(),
    }
}

/// Returns bytes without the secrets that this process knows.
#[must_use]
pub fn redact_bytes(bytes: Vec<u8>) -> Vec<u8> {
    let redacted = known_secrets().and_then(|known| match known.redact_bytes(&bytes) {
        Cow::Owned(redacted) => Some(redacted),
        Cow::Borrowed(_) => None,
    });
    redacted.unwrap_or(bytes)
}

/// Returns `true` if bytes contain a secret that this process knows.
#[must_use]
pub fn contains_secret(bytes: &[u8]) -> bool {
    known_secrets().is_some_and(|known| known.find_secret(bytes, 0, MIN_SECRET_LENGTH).is_some())
}

/// Removes secrets from a text that arrives in pieces.
#[derive(Debug, Default)]
pub struct PieceRedactor {
    /// The last characters, if they may begin a secret.
    kept: String,
}

impl PieceRedactor {
    /// Returns the next piece. Its end is kept until the next one if it may begin a secret.
    pub fn push(&mut self, piece: &str) -> String {
        self.kept.push_str(piece);
        let end =
            known_secrets().map_or(self.kept.len(), |known| known.find_open_secret(self.kept.as_bytes()));
        let rest = self.kept.split_off(self.kept.floor_char_boundary(end));
        redact_text(&std::mem::replace(&mut self.kept, rest)).into_owned()
    }

    /// Returns the end of the text.
    pub fn finish(&mut self) -> String {
        redact_text(&std::mem::take(&mut self.kept)).into_owned()
    }
}

/// Secrets, and their removal from texts.
#[derive(Clone, Default)]
pub struct SecretRedactor {
    values: Vec<Vec<u8>>,
    /// The values in hexadecimal digits and in Base64, which are compared as they are.
    encoded: Vec<Vec<u8>>,
    /// `true` for each two bytes with which a secret in any encoding may begin: most places of a text are none.
    beginnings: Vec<bool>,
}

impl std::fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretRedactor({} secrets)", self.values.len())
    }
}

impl SecretRedactor {
    /// Adds a secret, and its words: of `Bearer abc`, also `abc`.
    pub fn add(&mut self, secret: &str) {
        let secret = secret.trim();
        self.insert(secret.as_bytes());
        let is_separator = |c: char| c.is_whitespace() || "=,;\"'".contains(c);
        let has_digit = |word: &&str| word.bytes().any(|byte| byte.is_ascii_digit());
        secret.split(is_separator).filter(has_digit).for_each(|word| self.insert(word.as_bytes()));
        // A scheme and a credential.
        if let Some((_, credential)) =
            secret.split_once(' ').filter(|(_, credential)| !credential.contains(' '))
        {
            self.insert(credential.as_bytes());
        }
        if let Some(encoded) = secret.strip_prefix("Basic ").and_then(|encoded| decode_base64(encoded.trim()))
        {
            self.insert(&encoded);
            encoded.split(|byte| *byte == b':').skip(1).for_each(|password| self.insert(password));
        }
    }

    /// Adds the value of a header, unless it can't be secret.
    pub fn add_header(&mut self, name: &str, value: &str) {
        if is_secret_header(name) {
            self.add(value);
        }
    }

    /// Adds the value of a variable, a parameter or an argument if it is secret by its name or its form.
    pub fn add_named(&mut self, name: &str, value: &str) {
        if is_secret_name(name) || looks_random(value) || looks_like_password(value) {
            self.add(value);
        }
        self.add_url(value);
    }

    /// Adds the secrets among the arguments of a program: `--token=…`, `--token …`, URLs.
    pub fn add_arguments(&mut self, arguments: &[String]) {
        let mut name = "";
        for argument in arguments {
            let (flag, value) = argument.split_once('=').unwrap_or((name, argument));
            if is_secret_name(flag) {
                self.add(value);
            }
            self.add_url(argument);
            name = if argument.starts_with('-') { argument } else { "" };
        }
    }

    /// Adds the credentials in a URL: user and password, parameters, and parts of the path that look random.
    pub fn add_url(&mut self, url: &str) {
        let Some((_, rest)) = url.split_once("://") else { return };
        let rest = rest.split('#').next().unwrap_or_default();
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = before.split_once('/').unwrap_or((before, ""));
        if let Some((credentials, _)) = host.rsplit_once('@') {
            let (user, password) = credentials.split_once(':').unwrap_or(("", credentials));
            self.add(&decode_percent(password));
            self.insert(format!("{}:{}", decode_percent(user), decode_percent(password)).as_bytes());
        }
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = decode_percent(&value.replace('+', " "));
            if is_secret_name(name) || looks_random(&value) {
                self.add(&value);
            }
        }
        path.split('/').filter(|part| looks_random(part)).for_each(|part| self.add(&decode_percent(part)));
    }

    fn insert(&mut self, value: &[u8]) {
        if value.len() < MIN_SECRET_LENGTH || is_word(value) || self.values.iter().any(|known| known == value)
        {
            return;
        }
        self.values.push(value.to_vec());
        // The longest first: a secret may contain another one.
        self.values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let hex = |digits: &[u8; 16]| {
            value
                .iter()
                .flat_map(|byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]])
                .collect()
        };
        self.encoded.extend([hex(b"0123456789abcdef"), hex(b"0123456789ABCDEF")]);
        for last in [b"+/", b"-_"] {
            self.encoded.extend((0..3).map(|offset| encode_base64_inside(value, offset, last)));
        }
        self.encoded.sort_by_key(|value| std::cmp::Reverse(value.len()));
        self.encoded.dedup();
        self.beginnings = vec![false; 1 << 16];
        let pair = |first: u8, second: u8| usize::from(first) << 8 | usize::from(second);
        self.encoded.iter().for_each(|value| self.beginnings[pair(value[0], value[1])] = true);
        for value in &self.values {
            b"%\\&+"
                .iter()
                .chain([&value[1]])
                .for_each(|second| self.beginnings[pair(value[0], *second)] = true);
        }
        // Escapes begin with one of these.
        b"%\\&"
            .iter()
            .for_each(|first| (0..=255).for_each(|second| self.beginnings[pair(*first, second)] = true));
    }

    /// Returns a text without the secrets, and without words that look like credentials.
    pub fn redact(&self, text: &str) -> String {
        let redacted = self.redact_bytes(text.as_bytes());
        redact_credential_like_words(&redact_text(&String::from_utf8_lossy(&redacted)))
    }

    /// Returns bytes without the secrets.
    pub fn redact_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let (mut out, mut from) = (Vec::new(), 0);
        while let Some(secret) = self.find_secret(bytes, from, MIN_SECRET_LENGTH) {
            out.extend_from_slice(&bytes[from..secret.start]);
            out.extend_from_slice(HIDDEN.as_bytes());
            from = secret.end;
        }
        if from == 0 {
            return Cow::Borrowed(bytes);
        }
        out.extend_from_slice(&bytes[from..]);
        Cow::Owned(out)
    }

    /// Returns the first secret from a position on. One that the end of the bytes cuts counts from `least` bytes on.
    fn find_secret(&self, bytes: &[u8], from: usize, least: usize) -> Option<Range<usize>> {
        if self.values.is_empty() {
            return None;
        }
        let begins = |at: usize| match bytes.get(at + 1) {
            Some(second) => self.beginnings[usize::from(bytes[at]) << 8 | usize::from(*second)],
            None => least == 1,
        };
        (from..bytes.len())
            .filter(|at| begins(*at))
            .find_map(|at| Some(at..self.secret_end(bytes, at, least)?))
    }

    /// Returns the position from which the bytes may begin a secret, or are one at their end; otherwise their length.
    fn find_open_secret(&self, bytes: &[u8]) -> usize {
        let mut from = 0;
        while let Some(secret) = self.find_secret(bytes, from, 1) {
            if secret.end == bytes.len() {
                return secret.start;
            }
            from = secret.end;
        }
        bytes.len()
    }

    /// Returns the end of the secret that begins at a position.
    fn secret_end(&self, bytes: &[u8], at: usize, least: usize) -> Option<usize> {
        let rest = &bytes[at..];
        let encoded = self.encoded.iter().find_map(|value| {
            let common = value.iter().zip(rest).take_while(|(a, b)| a == b).count();
            (common == value.len() || (common == rest.len() && common.div_ceil(2) >= least))
                .then_some(at + common)
        });
        encoded.or_else(|| self.values.iter().find_map(|value| match_escaped(value, 0, bytes, at, least)))
    }
}

/// Returns the end of a secret at a position, in which each character may be escaped in another way. A secret that is cut by the end of the
/// bytes ends there, if at least `least` of its bytes are there.
fn match_escaped(secret: &[u8], from: usize, bytes: &[u8], mut at: usize, least: usize) -> Option<usize> {
    let mut number = from;
    // The end of the bytes may cut an escape, too.
    let cut_escape = |number: usize, at: usize| {
        let is_escape = bytes.len() - at < MAX_ESCAPE && b"%\\&".contains(&bytes[at]);
        (is_escape && number + 1 >= least).then_some(bytes.len())
    };
    while let Some(byte) = secret.get(number) {
        if at == bytes.len() {
            return (number >= least).then_some(at);
        }
        // Escapes are of characters, and characters outside ASCII have several bytes.
        if !byte.is_ascii()
            && let Some(c) = first_char(&secret[number..])
            && let Some(end) = escape_end(c.into(), bytes, at)
        {
            (number, at) = (number + c.len_utf8(), end);
            continue;
        }
        match (byte, bytes[at]) {
            // It may stand for itself or begin an escape.
            (b'%' | b'\\' | b'&', b'%' | b'\\' | b'&') => {
                let ends = escape_ends(*byte, bytes, at);
                let end =
                    ends.into_iter().find_map(|end| match_escaped(secret, number + 1, bytes, end, least));
                return end.or_else(|| cut_escape(number, at));
            }
            (byte, found) if *byte == found => at += 1,
            (byte, _) => match escaped_byte(*byte, bytes, at) {
                Some(end) => at = end,
                None => return cut_escape(number, at),
            },
        }
        number += 1;
    }
    Some(at)
}

fn first_char(bytes: &[u8]) -> Option<char> {
    let begin = &bytes[..bytes.len().min(4)];
    let valid = std::str::from_utf8(begin).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&begin[..valid]).ok()?.chars().next()
}

/// Returns the possible ends of a character that begins escapes: escaped any number of times, or as it is.
fn escape_ends(byte: u8, bytes: &[u8], at: usize) -> Vec<usize> {
    let mut ends: Vec<usize> = match byte {
        b'%' if bytes[at] == b'%' => {
            let repeated = bytes[at + 1..].chunks_exact(2).take_while(|pair| *pair == b"25").count();
            (1..=repeated).rev().map(|count| at + 1 + 2 * count).collect()
        }
        b'\\' if bytes[at] == b'\\' => {
            let slashes = bytes[at..].iter().take_while(|it| **it == b'\\').count();
            [8, 4, 2].into_iter().filter(|count| *count <= slashes).map(|count| at + count).collect()
        }
        _ => Vec::new(),
    };
    ends.extend(escaped_byte(byte, bytes, at));
    if bytes[at] == byte {
        ends.push(at + 1);
    }
    ends
}

/// Returns the end of a byte, escaped or as it is.
fn escaped_byte(byte: u8, bytes: &[u8], at: usize) -> Option<usize> {
    match bytes[at] {
        b'+' if byte == b' ' => Some(at + 1),
        b'%' => {
            // %41, or escaped again: %2541.
            let is_byte = |at: usize| parse_hex(bytes.get(at..at + 2)) == Some(byte.into());
            let mut digits = at + 1;
            while bytes.get(digits..digits + 2) == Some(b"25") && !is_byte(digits) {
                digits += 2;
            }
            is_byte(digits).then_some(digits + 2)
        }
        b'\\' | b'&' => escape_end(byte.into(), bytes, at),
        plain => (plain == byte).then_some(at + 1),
    }
}

fn parse_hex(digits: Option<&[u8]>) -> Option<u32> {
    let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns the end of an escape of a character with backslashes, or by its name or number in HTML.
fn escape_end(code: u32, bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let is_char = |c: u8| code == u32::from(c);
    match rest.first()? {
        b'\\' => {
            let slashes = rest.iter().take_while(|it| **it == b'\\').count();
            let after = at + slashes;
            let unit = |at: usize| parse_hex(bytes.get(at..at + 4));
            match bytes.get(after)? {
                b'u' if bytes.get(after + 1) == Some(&b'{') => {
                    let length = bytes[after + 2..].iter().take(7).position(|it| *it == b'}')?;
                    let digits = bytes.get(after + 2..after + 2 + length);
                    (parse_hex(digits) == Some(code)).then_some(after + length + 3)
                }
                b'u' if code > 0xFFFF => {
                    let high = 0xD7C0 + (code >> 10);
                    let low = 0xDC00 + (code & 0x3FF);
                    let second = after + 5 + slashes + 1;
                    (unit(after + 1) == Some(high) && unit(second) == Some(low)).then_some(second + 4)
                }
                b'u' if unit(after + 1) == Some(code) => Some(after + 5),
                b'x' if parse_hex(bytes.get(after + 1..after + 3)) == Some(code) => Some(after + 3),
                b'n' if is_char(b'\n') => Some(after + 1),
                b't' if is_char(b'\t') => Some(after + 1),
                it => is_char(*it).then_some(after + 1),
            }
        }
        b'&' => {
            let length = rest.iter().take(10).position(|it| *it == b';')?;
            let is_it = match &rest[1..length] {
                b"amp" => is_char(b'&'),
                b"lt" => is_char(b'<'),
                b"gt" => is_char(b'>'),
                b"quot" => is_char(b'"'),
                b"apos" => is_char(b'\''),
                [b'#', b'x' | b'X', digits @ ..] => parse_hex(Some(digits)) == Some(code),
                [b'#', digits @ ..] => {
                    std::str::from_utf8(digits).ok().and_then(|it| it.parse().ok()) == Some(code)
                }
                _ => false,
            };
            is_it.then_some(at + length + 1)
        }
        _ => None,
    }
}

const BASE64: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Returns the characters that a value has in the Base64 of anything that has so many bytes, modulo 3, before it.
fn encode_base64_inside(value: &[u8], offset: usize, last: &[u8; 2]) -> Vec<u8> {
    let bit = |at: usize| value[at / 8] >> (7 - at % 8) & 1;
    let skipped = (6 - offset * 8 % 6) % 6;
    let digits = (skipped..value.len() * 8).step_by(6).take_while(|at| at + 6 <= value.len() * 8);
    let digits = digits.map(|at| (at..at + 6).fold(0_usize, |digit, at| digit << 1 | usize::from(bit(at))));
    digits.map(|digit| BASE64.get(digit).copied().unwrap_or_else(|| last[digit - BASE64.len()])).collect()
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => BASE64.iter().position(|it| *it == byte)?,
        };
        bits = bits << 6 | u32::try_from(digit).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xFF) as u8);
        }
    }
    Some(bytes)
}

/// Decodes `%41` as `A`. Anything else stays as it is.
pub fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => (bytes.push(byte), rest = &after[2..]),
            None => (bytes.push(*first), rest = after),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns `true` if the value of a header may be a credential.
#[must_use]
pub fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !PUBLIC_HEADERS.iter().any(|beginning| name.starts_with(beginning)) && !name.ends_with("-version")
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let (whole, endings) = SECRET_NAMES.split_at(SECRET_NAMES.len() - 4);
    let is_secret = |word: &str| whole.contains(&word) || endings.iter().any(|ending| word.ends_with(ending));
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| is_secret(word.trim_end_matches(|c: char| c.is_ascii_digit())))
}

/// Returns `true` if a value has the form of a credential: long, without spaces, with a part that mixes letters and digits.
fn looks_random(value: &str) -> bool {
    let is_token = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~+=:%".contains(&byte));
    let is_mixed = |part: &str| {
        part.len() >= MIN_SECRET_LENGTH
            && part.bytes().any(|byte| byte.is_ascii_digit())
            && part.bytes().any(|byte| byte.is_ascii_alphabetic())
    };
    value.len() >= RANDOM_LENGTH
        && is_token
        && value.split(|c: char| !c.is_ascii_alphanumeric()).any(is_mixed)
}

/// Returns `true` if a value has the form of a password: letters, digits and other characters, and none of those that paths, URLs,
/// addresses, lists and JSON have.
fn looks_like_password(value: &str) -> bool {
    value.len() >= PASSWORD_LENGTH
        && !value.contains(|c: char| c.is_whitespace() || "/.,;:=\\'\"`<>()[]{}|".contains(c))
        && !value.starts_with(['-', '$'])
        && value.contains(|c: char| c.is_ascii_digit())
        && value.contains(char::is_alphabetic)
        && value.contains(['!', '@', '#', '$', '%', '^', '&', '*', '?', '~'])
}

/// Returns `true` if a value is a single word, such as `password` or `postgres`. Texts have it anyway, and removing it would mutilate them.
fn is_word(value: &[u8]) -> bool {
    let is_letters = |letters: &str| {
        let rest = letters.chars().skip(1);
        letters.chars().all(char::is_alphabetic)
            && (rest.clone().all(char::is_lowercase) || letters.chars().all(char::is_uppercase))
    };
    value.len() < RANDOM_LENGTH && str::from_utf8(value).is_ok_and(is_letters)
}

/// Removes every word that looks like a credential.
fn redact_credential_like_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut previous = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let word = &rest[..rest.find(|c| !is_token_char(c)).unwrap_or(rest.len())];
        if word.is_empty() {
            let between = rest.find(is_token_char).unwrap_or(rest.len());
            out.push_str(&rest[..between]);
            rest = &rest[between..];
            continue;
        }
        out.push_str(if looks_like_credential(word, &previous) { HIDDEN } else { word });
        previous = word.to_ascii_lowercase();
        rest = &rest[word.len()..];
    }
    out
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.*~+/".contains(c)
}

fn looks_like_credential(word: &str, previous: &str) -> bool {
    let long = word.len() >= MIN_SECRET_LENGTH;
    let has_prefix = KEY_PREFIXES.iter().any(|beginning| word.starts_with(beginning));
    let is_labelled = CREDENTIAL_LABELS.contains(&previous)
        && word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'*');
    long && (has_prefix || is_labelled)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redactor(secrets: &[&str]) -> SecretRedactor {
        let mut redactor = SecretRedactor::default();
        secrets.iter().for_each(|secret| redactor.add(secret));
        redactor
    }

    #[test]
    fn keys_are_redacted_and_words_are_not() {
        let redactor = redactor(&["very-secret key-number-1", "short"]);
        let cases = [
            ("Incorrect API key provided: sk-abc***xyz.", "Incorrect API key provided: [hidden]"),
            ("Authorization: Bearer abcdef123456", "Authorization: Bearer [hidden]"),
            ("{\"x-api-key\":\"0123456789\"}", "{\"x-api-key\":\"[hidden]\"}"),
            ("you sent very-secret key-number-1, and key-number-1", "you sent [hidden], and [hidden]"),
            (
                "a short text about key words and bearer tokens",
                "a short text about key words and bearer tokens",
            ),
            ("GET /v1?key=AIzaSyA-0123456789 failed", "GET /v1?key=[hidden] failed"),
            ("maximum context length is 8192 tokens – süß", "maximum context length is 8192 tokens – süß"),
        ];
        for (text, expected) in cases {
            assert_eq!(redactor.redact(text), expected);
        }
    }

    #[test]
    fn credential_headers_are_recognised_by_name() {
        for name in
            ["Authorization", "api-key", "X-Api-Key", "X-Auth-Token", "Ocp-Subscription-Key", "X-Custom"]
        {
            assert!(is_secret_header(name), "{name}");
        }
        for name in ["OpenAI-Organization", "Content-Type", "accept-language", "Anthropic-Version"] {
            assert!(!is_secret_header(name), "{name}");
        }
    }

    #[test]
    fn credentials_in_urls_and_variables_are_secret() {
        let mut redactor = SecretRedactor::default();
        redactor.add_url("https://user:p%40ssword-1@h.example/mcp/T0123456789abcdefgh?api_key=query-key-1&lang=english-uk#x");
        redactor.add_header("authorization", "Basic dXNlcjpiYXNpYy1wYXNzLTE=");
        redactor.add_named("SVC_TOKEN", "token-value");
        redactor.add_named("SERVICE_LOGIN", "s3cr3t!phrase");
        redactor.add_named("DATA_DIR", "/data/folder-1");
        redactor.add_named("SERVICE_USER_2", "P@ssw0rd-2024");
        redactor.add_named("OPTIONS", "--size=4096{x}");
        redactor.add_named("LIMITS", "{\"level\":3,\"of\":\"*\"}");
        redactor.add_named("QUERY", "page=1&size=20?");
        redactor.add_named("SENDER", "Ann1@example.com");
        redactor.add_named("HOME_PAGE", "https://site1.example/?q=1#top");
        redactor.add_named("REGION", "eu-central-1b");
        redactor.add_named("GREETING", "Hello, 5 worlds!");
        redactor.add_arguments(
            &["--api-key=argument-1", "--verbose", "--password", "argument-2", "plain-word"]
                .map(str::to_owned),
        );
        redactor.add_named("DATABASE", "postgres://me:database-pass@db/x");
        let redact =
            |text: &str| String::from_utf8(redactor.redact_bytes(text.as_bytes()).into_owned()).unwrap();
        for secret in [
            "p@ssword-1",
            "p%40ssword-1",
            "T0123456789abcdefgh",
            "query-key-1",
            "basic-pass-1",
            "token-value",
            "s3cr3t!phrase",
            "P@ssw0rd-2024",
            "database-pass",
            "argument-1",
            "argument-2",
        ] {
            assert_eq!(redact(&format!("a {secret} b")), "a [hidden] b", "{secret}");
        }
        for plain in [
            "english-uk",
            "/data/folder-1",
            "--size=4096{x}",
            "{\"level\":3,\"of\":\"*\"}",
            "page=1&size=20?",
            "Ann1@example.com",
            "https://site1.example/?q=1#top",
            "eu-central-1b",
            "Hello, 5 worlds!",
            "h.example",
            "plain-word",
        ] {
            assert_eq!(redact(plain), plain);
        }
    }

    #[test]
    fn ordinary_words_are_not_removed() {
        let mut redactor = redactor(&["postgres", "Password", "CHANGEME", "Geheimnis", "Bearer development"]);
        redactor.add_named("DB_PASSWORD", "administrator");
        redactor.add_url("postgres://admin:localhost@db.example/x");
        let text = "the administrator of postgres on localhost has a Password in CHANGEME, in development, als Geheimnis";
        assert_eq!(redactor.redact(text), text);
        for secret in
            ["admin:localhost", "Bearer development", "correcthorsebattery", "hunter22", "camelCase"]
        {
            redactor.add(secret);
            assert_eq!(redactor.redact(&format!("({secret})")), "([hidden])", "{secret}");
        }
    }

    #[test]
    fn secrets_in_pieces_are_removed() {
        const SECRET: &str = "piece-\"4f9a81\"-secret";

        remember_secrets(&redactor(&[SECRET]));
        let escaped = serde_json::to_string(SECRET).unwrap();
        let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
        for echo in [SECRET, escaped.trim_matches('"'), &hex] {
            let text = format!("piece of ä {echo} and pie");
            for size in 1..text.len() {
                let (mut redactor, mut joined) = (PieceRedactor::default(), String::new());
                let characters: Vec<char> = text.chars().collect();
                for piece in characters.chunks(size) {
                    joined += &redactor.push(&piece.iter().collect::<String>());
                    assert!("piece of ä [hidden] and pie".starts_with(&joined), "{size}: {joined}");
                }
                joined += &redactor.finish();
                assert_eq!(joined, "piece of ä [hidden] and pie", "{size}");
            }
        }
    }

    fn encodings(secret: &str) -> Vec<String> {
        let escaped = |escape: &dyn Fn(u8) -> String| secret.bytes().map(escape).collect::<String>();
        let json = serde_json::to_string(secret).unwrap();
        let json = json[1..json.len() - 1].to_owned();
        let json_again = serde_json::to_string(&json).unwrap();
        let url = escaped(&|byte| match byte {
            b' ' => "+".to_owned(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        let base64 = |before: &str| {
            let all = format!("{before}{secret}!!!");
            let bits: String = all.bytes().map(|byte| format!("{byte:08b}")).collect();
            let digit = |bits: &[u8]| {
                let at = usize::from_str_radix(std::str::from_utf8(bits).unwrap(), 2).unwrap();
                char::from(*BASE64.iter().chain(b"+/").nth(at).unwrap())
            };
            bits.as_bytes().chunks_exact(6).map(digit).collect::<String>()
        };
        vec![
            secret.to_owned(),
            url.clone(),
            url.to_lowercase(),
            url.replace('%', "%25"),
            json.clone(),
            json_again[1..json_again.len() - 1].to_owned(),
            secret.escape_debug().to_string(),
            escaped(&|byte| format!("%{byte:02x}")),
            secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect(),
            secret.chars().map(|c| format!("\\u{{{:x}}}", u32::from(c))).collect(),
            secret.chars().map(|c| format!("&#{};", u32::from(c))).collect(),
            escaped(&|byte| format!("\\x{byte:02x}")),
            escaped(&|byte| format!("&#{byte};")),
            escaped(&|byte| format!("&#x{byte:x};")),
            secret
                .replace('&', "&amp;")
                .replace('"', "&quot;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('\'', "&#39;"),
            escaped(&|byte| format!("{byte:02x}")),
            escaped(&|byte| format!("{byte:02X}")),
            base64(""),
            base64("a"),
            base64("ab"),
            base64("user:"),
            base64("").replace('+', "-").replace('/', "_"),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// 50 secrets of any characters, echoed in any encoding, whole and cut at the end.
        #[test]
        fn planted_secrets_are_found_in_all_encodings(
            secrets in prop::collection::vec("[!-~][ -~]{10,30}[äß€\u{1f600}]{0,2}[!-~]{1,9}", 50),
            cut in 8_usize..12,
        ) {
            // Lower case changes letters that are no escapes.
            let mut redactor = SecretRedactor::default();
            secrets.iter().for_each(|secret| redactor.insert(secret.as_bytes()));
            for secret in &secrets {
                for (number, echo) in encodings(secret).into_iter().enumerate() {
                    if number == 2 && echo.to_uppercase() != echo && secret.to_lowercase() != *secret {
                        continue;
                    }
                    let text = format!("(echo: {echo})");
                    let redacted = String::from_utf8(redactor.redact_bytes(text.as_bytes()).into_owned()).unwrap();
                    prop_assert!(redacted.contains(HIDDEN), "{number} {secret:?} {text:?} {redacted:?}");
                    prop_assert!(redacted.len() < HIDDEN.len() + 20, "{number} {secret:?} {text:?} {redacted:?}");
                }
                let text = format!("cut: {}", &secret[..secret.floor_char_boundary(cut)]);
                let redacted = String::from_utf8(redactor.redact_bytes(text.as_bytes()).into_owned()).unwrap();
                prop_assert!(redacted.ends_with(HIDDEN), "{secret:?} {redacted:?}");
            }
        }
    }
}
