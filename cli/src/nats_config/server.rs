//! The text of `nats.conf`: the one that `deploy/kubernetes` mounts and compose mounts too.

/// What every server of a cluster is told; what differs between servers comes from its environment.
const TEXT: &str = include_str!("../../../deploy/kubernetes/components/nats/nats.conf");

/// The whole text, with or without the parts that encrypt.
#[must_use]
pub fn text(tls: bool) -> String {
    if tls { TEXT.to_owned() } else { without_tls(TEXT) }
}

/// Leaves out the blocks that begin with `tls {`, with the comments right above them.
fn without_tls(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let word = line.trim();
        if word == "tls {" {
            inside = true;
            while kept.last().is_some_and(|line| line.trim().starts_with('#')) {
                kept.pop();
            }
        }
        if !inside {
            kept.push(line);
        }
        inside &= word != "}";
    }
    kept.join("\n") + "\n"
}
