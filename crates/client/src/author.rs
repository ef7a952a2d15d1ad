//! The author of commands and answers on this machine.

/// Returns the author of a command: `by`, or else the login name.
pub fn author_name(by: Option<String>) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|name| !name.trim().is_empty());
    by.or_else(|| variable("LOGNAME"))
        .or_else(|| variable("USER"))
        .or_else(login_name)
        .unwrap_or_else(|| "unknown".into())
}

fn login_name() -> Option<String> {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::author_name;

    #[test]
    fn a_command_always_has_an_author() {
        assert_eq!(author_name(Some("ann".into())), "ann");
        assert!(!author_name(None).is_empty());
    }
}
