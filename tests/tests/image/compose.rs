//! `deploy/compose/compose.yaml` as the engine would read it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::roots::repository_folder;

/// The parsed file.
pub struct ComposeFile(Value);

/// A service.
#[derive(Clone, Copy)]
pub struct ComposeService<'a> {
    file: &'a Value,
    /// The service's name.
    pub name: &'a str,
    its: &'a Value,
}

impl ComposeFile {
    /// Reads the file, with the defaults of its variables.
    ///
    /// # Panics
    /// It is not a valid file.
    pub fn read_compose_file() -> Self {
        let text = fs::read_to_string(compose_folder().join("compose.yaml")).unwrap();
        let mut file: Value = serde_saphyr::from_str(&text).unwrap();
        merge_yaml_keys(&mut file);
        interpolate_variables(&mut file);
        Self(file)
    }

    /// All services.
    pub fn services(&self) -> impl Iterator<Item = ComposeService<'_>> {
        let services = self.0["services"].as_object().unwrap();
        services.iter().map(|(name, its)| ComposeService { file: &self.0, name, its })
    }

    /// A service by name.
    ///
    /// # Panics
    /// There is no such service.
    pub fn service<'a>(&'a self, name: &'a str) -> ComposeService<'a> {
        self.services().find(|service| service.name == name).unwrap_or_else(|| panic!("no service {name}"))
    }

    /// The files that it names as configs or secrets, relative to the repository.
    pub fn config_and_secret_files(&self, of: &str) -> Vec<PathBuf> {
        let all = self.0[of].as_object().unwrap().values();
        all.map(|one| compose_folder().join(one["file"].as_str().unwrap())).collect()
    }

    /// The names of its networks; `true` for those with access to other networks.
    pub fn networks_with_access(&self) -> BTreeMap<String, bool> {
        let all = self.0["networks"].as_object().unwrap().iter();
        all.map(|(name, network)| (name.clone(), network["internal"] != true)).collect()
    }
}

impl ComposeService<'_> {
    /// The name of its image without the registry, and its tag.
    pub fn image_name_and_tag(&self) -> (String, String) {
        let (name, tag) = self.its["image"].as_str().unwrap().rsplit_once(':').unwrap();
        (name.rsplit('/').next().unwrap().to_owned(), tag.to_owned())
    }

    /// Its arguments.
    pub fn command_arguments(&self) -> Vec<String> {
        string_list(&self.its["command"])
    }

    /// Its environment.
    pub fn environment(&self) -> Vec<(String, String)> {
        let all = self.its["environment"].as_object().into_iter().flatten();
        all.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// The number of replicas.
    pub fn replicas(&self) -> u64 {
        self.its["deploy"]["replicas"].as_u64().unwrap_or(1)
    }

    /// Its temporary folders.
    pub fn temporary_folders(&self) -> Vec<String> {
        string_list(&self.its["tmpfs"])
    }

    /// Its volumes: names or folders, with their mount points.
    pub fn volumes(&self) -> Vec<(String, String)> {
        let all = string_list(&self.its["volumes"]).into_iter();
        all.map(|volume| {
            let (what, place) = volume.trim_end_matches(":ro").rsplit_once(':').unwrap();
            (what.to_owned(), place.to_owned())
        })
        .collect()
    }

    /// The networks it is on.
    pub fn network_names(&self) -> Vec<String> {
        let networks = &self.its["networks"];
        networks.as_object().map_or_else(|| string_list(networks), |named| named.keys().cloned().collect())
    }

    /// The host names under which others reach it.
    pub fn host_names(&self) -> Vec<String> {
        let networks = self.its["networks"].as_object().into_iter().flatten();
        let more = networks.flat_map(|(_, network)| string_list(&network["aliases"]));
        more.chain([self.name.to_owned()]).collect()
    }

    /// Its published ports.
    pub fn published_ports(&self) -> Vec<String> {
        string_list(&self.its["ports"])
    }

    /// The value of a setting.
    pub fn setting_value(&self, name: &str) -> &Value {
        &self.its[name]
    }

    /// Its configs or secrets: each with its path in the container and its file.
    pub fn mounted_files(&self, of: &str) -> Vec<(String, PathBuf)> {
        let all = self.its[of].as_array().into_iter().flatten();
        all.map(|one| {
            let source = one.as_str().unwrap_or_else(|| one["source"].as_str().unwrap());
            let target = one["target"].as_str().unwrap_or(source);
            let place =
                if target.starts_with('/') { target.into() } else { format!("/run/secrets/{target}") };
            let file = self.file[of][source]["file"].as_str().unwrap_or_else(|| panic!("no {of} {source}"));
            (place, compose_folder().join(file))
        })
        .collect()
    }
}

/// The folder of the file.
pub fn compose_folder() -> PathBuf {
    repository_folder().join("deploy/compose")
}

fn string_list(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Merges the mapping under `<<` into its parent; existing keys win.
fn merge_yaml_keys(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(merge_yaml_keys);
            if let Some(Value::Object(more)) = fields.remove("<<") {
                for (name, value) in more {
                    fields.entry(name).or_insert(value);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(merge_yaml_keys),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Replaces `${…}` by its default or by the user of the images.
fn interpolate_variables(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(interpolate_variables),
        Value::Array(all) => all.iter_mut().for_each(interpolate_variables),
        Value::String(text) => {
            while let Some((before, rest)) = text.split_once("${") {
                let (inside, after) = rest.split_once('}').unwrap();
                let is = match inside.split_once(":-") {
                    Some((_, otherwise)) => otherwise,
                    None if inside.starts_with("MILLRACE_USER:?") => "65532:65532",
                    None => panic!("no value for {inside}"),
                };
                *text = format!("{before}{is}{after}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
