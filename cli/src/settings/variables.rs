//! The variables that configure Millrace. A test compares this table with the sources and with `docs/settings.md`.

/// A variable, which is also a key of `millrace.toml`: `MILLRACE_NATS_URL` is `nats_url`.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// The name, which begins with [`PREFIX`].
    pub name: &'static str,
    pub kind: ValueKind,
    /// The places that may set it.
    pub scope: VariableScope,
    /// The value if it is set nowhere; empty if there is none.
    pub default: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Any text, also a duration or an address.
    Text,
    Number,
    /// A file or folder. In `millrace.toml`, relative to the folder of that file.
    Path,
    /// Several texts, separated by this character in the variable.
    Texts(char),
    /// Several paths, separated by this character in the variable.
    Paths(char),
    /// A password or key, which is never shown.
    Secret,
}

/// The places where a variable may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableScope {
    /// The environment, `.env`, and every `millrace.toml`.
    Everywhere,
    /// The environment and the user's own `millrace.toml`: it names a program to run or a file to write, which must not
    /// depend on the folder that a command is called in.
    User,
    /// The environment and `.env`: files that are shared must not contain it.
    Secret,
    /// The environment and `.env`: it selects among the settings in the files.
    Selection,
    /// The environment only: it selects the files.
    Environment,
}

pub const PREFIX: &str = "MILLRACE_";

pub const VARIABLES: &[Variable] = &[
    everywhere("MILLRACE_DATA", ValueKind::Path, "millrace in the user's data folder"),
    everywhere("MILLRACE_NATS_URL", ValueKind::Text, "the local cluster on the data folder"),
    everywhere("MILLRACE_NATS_CREDS", ValueKind::Path, ""),
    everywhere("MILLRACE_NATS_NKEY", ValueKind::Path, ""),
    secret("MILLRACE_NATS_NKEY_SEED"),
    everywhere("MILLRACE_NATS_USER", ValueKind::Text, ""),
    secret("MILLRACE_NATS_PASSWORD"),
    everywhere("MILLRACE_NATS_CA", ValueKind::Path, "the authorities of this machine"),
    everywhere("MILLRACE_NATS_CERT", ValueKind::Path, ""),
    everywhere("MILLRACE_NATS_KEY", ValueKind::Path, ""),
    of_user("MILLRACE_NATS_SERVER", ValueKind::Path, "nats-server on the PATH, or fetched"),
    everywhere("MILLRACE_MODEL", ValueKind::Texts(';'), "chosen by the API keys that are set"),
    everywhere("MILLRACE_PRICES", ValueKind::Path, "the built-in table"),
    everywhere("MILLRACE_CONTEXT_WINDOW", ValueKind::Text, "the known windows"),
    of_user("MILLRACE_RECORD", ValueKind::Path, ""),
    of_user("MILLRACE_WEB", ValueKind::Text, "false"),
    everywhere("MILLRACE_CALL_TIMEOUT", ValueKind::Text, "10m"),
    everywhere("MILLRACE_SLOTS", ValueKind::Number, "8"),
    everywhere("MILLRACE_GRACE", ValueKind::Text, "20s"),
    everywhere("MILLRACE_DOCUMENT_CACHE", ValueKind::Path, "millrace/documents in the user's cache folder"),
    everywhere("MILLRACE_CHECK_FOLDERS", ValueKind::Paths(':'), ""),
    everywhere("MILLRACE_LANE_LEASE", ValueKind::Text, "2s in a new local cluster, else 6s"),
    everywhere("MILLRACE_LANE_LEASE_IF_NEW", ValueKind::Text, "6s"),
    everywhere("MILLRACE_WORK_LEASE", ValueKind::Text, "5s in a new local cluster, else 15s"),
    everywhere("MILLRACE_WORK_LEASE_IF_NEW", ValueKind::Text, "15s"),
    everywhere("MILLRACE_LINGER", ValueKind::Text, "5s"),
    everywhere("MILLRACE_API", ValueKind::Text, "127.0.0.1:7070, or the next free port"),
    everywhere("MILLRACE_TRACE_CONTENT", ValueKind::Text, "false"),
    everywhere("MILLRACE_TRACE_SPLIT", ValueKind::Text, "1h"),
    everywhere("MILLRACE_REQUIRE_TOKEN", ValueKind::Text, "false"),
    everywhere("MILLRACE_BEHIND_PROXY", ValueKind::Text, "false"),
    everywhere("MILLRACE_API_HOSTS", ValueKind::Texts(','), "localhost and addresses"),
    everywhere("MILLRACE_TLS_CERT", ValueKind::Path, ""),
    everywhere("MILLRACE_TLS_KEY", ValueKind::Path, ""),
    everywhere("MILLRACE_OIDC_ISSUER", ValueKind::Text, ""),
    everywhere("MILLRACE_OIDC_AUDIENCE", ValueKind::Text, ""),
    everywhere("MILLRACE_OIDC_KEYS", ValueKind::Text, "found by the issuer"),
    everywhere("MILLRACE_OIDC_SCOPE_CLAIM", ValueKind::Text, "scope"),
    everywhere("MILLRACE_OIDC_NAME_CLAIM", ValueKind::Text, "sub"),
    everywhere("MILLRACE_OIDC_GRANTS", ValueKind::Texts(';'), "millrace:SCOPE"),
    everywhere("MILLRACE_OIDC_REQUIRE", ValueKind::Texts(';'), ""),
    everywhere("MILLRACE_OIDC_TENANT_CLAIM", ValueKind::Text, ""),
    everywhere("MILLRACE_TENANTS", ValueKind::Path, ""),
    everywhere("MILLRACE_MAX_REQUESTS", ValueKind::Number, "1000"),
    everywhere("MILLRACE_MAX_STREAMS", ValueKind::Number, "1000"),
    everywhere("MILLRACE_MAX_CONNECTIONS", ValueKind::Number, "500"),
    everywhere("MILLRACE_MAX_IN_PROGRESS", ValueKind::Number, "2000"),
    everywhere("MILLRACE_ALLOW_PRIVATE_WEBHOOKS", ValueKind::Texts(','), ""),
    everywhere("MILLRACE_HTTP", ValueKind::Text, "no health and metrics page"),
    everywhere("MILLRACE_LOG", ValueKind::Text, "info for processes, error for commands"),
    everywhere("MILLRACE_LOG_FORMAT", ValueKind::Text, "text"),
    of_user("MILLRACE_ECHO_LEDGER", ValueKind::Path, ""),
    Variable { name: PROFILE, kind: ValueKind::Text, scope: VariableScope::Selection, default: "" },
    Variable {
        name: CONFIG,
        kind: ValueKind::Text,
        scope: VariableScope::Environment,
        default: "millrace.toml of the folder and of the user",
    },
];

/// The variable with the name of the profile.
pub const PROFILE: &str = "MILLRACE_PROFILE";
/// The variable with the path of the only settings file to read, or `none`.
pub const CONFIG: &str = "MILLRACE_CONFIG";

const fn everywhere(name: &'static str, kind: ValueKind, default: &'static str) -> Variable {
    Variable { name, kind, scope: VariableScope::Everywhere, default }
}

const fn of_user(name: &'static str, kind: ValueKind, default: &'static str) -> Variable {
    Variable { name, kind, scope: VariableScope::User, default }
}

const fn secret(name: &'static str) -> Variable {
    Variable { name, kind: ValueKind::Secret, scope: VariableScope::Secret, default: "" }
}

impl Variable {
    pub fn by_name(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// Returns the variable with this key in `millrace.toml`.
    pub fn by_key(key: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.key() == key)
    }

    /// Returns the key in `millrace.toml`.
    pub fn key(&self) -> String {
        self.name.strip_prefix(PREFIX).unwrap_or(self.name).to_ascii_lowercase()
    }
}

/// Returns the variable with the credential that is sent to the address in a setting, if it has one.
pub fn credential_for_address(name: &str, value: &str) -> Option<String> {
    match name {
        "MILLRACE_NATS_URL" => Some("MILLRACE_NATS_PASSWORD".to_owned()),
        "MILLRACE_MODEL" => value.contains('@').then(|| "OPENAI_COMPATIBLE_API_KEY".to_owned()),
        name => name.strip_suffix("_BASE_URL").map(|provider| format!("{provider}_API_KEY")),
    }
}

/// `true` if `.env` may set a variable that is not Millrace's: a credential or the address of a provider. Others are
/// ignored, since programs share that file, and since some of them (such as `PATH`) decide which programs run.
pub fn is_provider_variable(name: &str) -> bool {
    const SUFFIXES: [&str; 5] = ["_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_BASE_URL"];
    let is_safe =
        name.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_');
    is_safe
        && (SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || ["OLLAMA_HOST", "SEARXNG_URL"].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_has_its_own_key() {
        for variable in VARIABLES {
            assert_eq!(Variable::by_key(&variable.key()).map(|found| found.name), Some(variable.name));
            assert_eq!(Variable::by_name(variable.name).map(|found| found.name), Some(variable.name));
        }
    }

    #[test]
    fn only_credentials_and_addresses_of_providers_are_passed_on() {
        for name in ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_HOST", "GITHUB_TOKEN", "SEARXNG_URL"] {
            assert!(is_provider_variable(name), "{name}");
        }
        for name in ["PATH", "LD_PRELOAD", "PIP_INDEX_URL", "HTTPS_PROXY", "HOME", "GIT_DIR", "a_KEY"] {
            assert!(!is_provider_variable(name), "{name}");
        }
    }
}
