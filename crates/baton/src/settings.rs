//! Where a setting comes from: the flag, else the environment, else the file, else the default.
//!
//! Every setting is declared once, as a flag. `--kv-memory` of `baton serve` is also `BATON_SERVE_KV_MEMORY` and the key
//! `kv-memory` in the table `[serve]`: the file's values become the flags' defaults, so that they are read by the same
//! parsers, and the precedence is clap's own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Error, FromArgMatches};
use toml::{Table, Value};

use crate::args::Cli;

/// The file's name is no key of the file.
const CONFIG: &str = "config";

/// Reads the command line, with the environment and the file behind it.
///
/// # Errors
/// What the user must be told: wrong settings, or the text of `--help` and `--version`.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Cli, Error> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let command = with_environment(Cli::command());
    // A first look, for the file's name alone: what the command line lacks may be in the file.
    let matches = with_nothing_required(command.clone()).try_get_matches_from(&argv)?;
    let Some(path) = matches.get_one::<PathBuf>(CONFIG) else {
        return Cli::from_arg_matches(&command.try_get_matches_from(&argv)?);
    };
    let mut shown = command.clone();
    let file = File::read(path, &command).map_err(|text| shown.error(ErrorKind::InvalidValue, text))?;
    let matches =
        file.apply(command).try_get_matches_from(&argv).map_err(|error| file.blame(error, shown))?;
    Cli::from_arg_matches(&matches)
}

/// The environment variable of a setting; `command` is empty for those of all commands.
pub fn variable(command: &str, flag: &str) -> String {
    let name = if command.is_empty() { format!("BATON_{flag}") } else { format!("BATON_{command}_{flag}") };
    name.replace('-', "_").to_uppercase()
}

/// Every environment variable that sets something.
pub fn variables() -> Vec<String> {
    let command = Cli::command();
    let of = |table: &Command, name: &str| -> Vec<String> {
        flags(table).map(|flag| variable(name, flag)).collect()
    };
    let mut variables = of(&command, "");
    variables.extend(command.get_subcommands().flat_map(|table| of(table, table.get_name())));
    variables
}

fn with_environment(command: Command) -> Command {
    let name_variables = |command: Command, name: &str| {
        command.mut_args(|arg| match settable(&arg) {
            true => {
                let variable = variable(name, arg.get_long().unwrap_or_default());
                // Their names follow from the flags'; the help says so once.
                arg.env(variable).hide_env(true)
            }
            false => arg,
        })
    };
    name_variables(command, "").mut_subcommands(|table| {
        let name = table.get_name().to_owned();
        let help = table.get_after_help().map(ToString::to_string).unwrap_or_default();
        let flag = flags(&table).next().unwrap_or_default().to_owned();
        let note = format!(
            "Every flag is a variable as well, --{flag} is {}, and a key of [{name}] in the file that --config names.",
            variable(&name, &flag)
        );
        name_variables(table, &name).after_help(format!("{help}\n\n{note}"))
    })
}

fn with_nothing_required(command: Command) -> Command {
    command.mut_subcommands(|table| table.mut_args(|arg| arg.required(false)))
}

/// Whether a flag holds a setting, as `--help` does not.
fn settable(arg: &Arg) -> bool {
    arg.get_long().is_some() && arg.get_action().takes_values()
}

fn flags(table: &Command) -> impl Iterator<Item = &str> {
    table.get_arguments().filter(|arg| settable(arg)).filter_map(Arg::get_long)
}

/// A configuration file whose keys are all known; the values are still text, for the flags' parsers.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// By table, the empty one for the settings of all commands, and by key.
    tables: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl File {
    fn read(path: &Path, command: &Command) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {shown}: {e}"))?;
        let root: Table = text.parse().map_err(|e| format!("{shown}: {e}"))?;
        let mut tables = BTreeMap::new();
        let mut everywhere = Table::new();
        for (key, value) in root {
            match (command.find_subcommand(&key), value) {
                (Some(table), Value::Table(values)) => {
                    tables.insert(
                        key,
                        texts(table, &values).map_err(|e| format!("{shown}: [{}] {e}", table.get_name()))?,
                    );
                }
                (Some(_), _) => return Err(format!("{shown}: `{key}` must be a table: [{key}]")),
                (None, Value::Table(_)) => {
                    let known: Vec<String> =
                        command.get_subcommands().map(|c| format!("[{}]", c.get_name())).collect();
                    return Err(format!(
                        "{shown}: unknown table [{key}]; the tables are {}",
                        known.join(", ")
                    ));
                }
                (None, value) => drop(everywhere.insert(key, value)),
            }
        }
        tables.insert(String::new(), texts(command, &everywhere).map_err(|e| format!("{shown}: {e}"))?);
        Ok(Self { path: path.to_owned(), tables })
    }

    /// Makes the file's values the flags' defaults.
    fn apply(&self, command: Command) -> Command {
        let set = |command: Command, name: &str| match self.tables.get(name) {
            None => command,
            Some(values) => command.mut_args(|arg| match arg.get_long().and_then(|flag| values.get(flag)) {
                None => arg,
                Some(texts) => arg.required(false).default_values(texts.clone()),
            }),
        };
        set(command, "").mut_subcommands(|table| {
            let name = table.get_name().to_owned();
            set(table, &name)
        })
    }

    /// Names the file in an error about one of its values: clap knows only flags.
    fn blame(&self, error: Error, mut command: Command) -> Error {
        let (Some(ContextValue::String(arg)), Some(ContextValue::String(value))) =
            (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        else {
            return error;
        };
        let flag = arg.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default();
        let ours =
            self.tables.iter().find(|(_, keys)| keys.get(flag).is_some_and(|texts| texts.contains(value)));
        let Some((table, _)) = ours else { return error };
        let place = if table.is_empty() { String::new() } else { format!(" in [{table}]") };
        let reason = std::error::Error::source(&error).map(|e| format!(": {e}")).unwrap_or_default();
        let text = format!("{}: bad value {value:?} of `{flag}`{place}{reason}", self.path.display());
        command.error(error.kind(), text)
    }
}

/// The values of one table, if all its keys are flags of the command.
fn texts(table: &Command, values: &Table) -> Result<BTreeMap<String, Vec<String>>, String> {
    let known: Vec<&str> = flags(table).filter(|flag| *flag != CONFIG).collect();
    let read = |(key, value): (&String, &Value)| {
        if !known.contains(&key.as_str()) {
            return Err(unknown(key, &known));
        }
        let texts = match value {
            Value::Array(items) => items.iter().map(|item| text(key, item)).collect(),
            value => text(key, value).map(|text| vec![text]),
        };
        Ok((key.clone(), texts?))
    };
    values.iter().map(read).collect()
}

fn text(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
        _ => Err(format!("the value of `{key}` must be a text, a number, true or false, or a list of them")),
    }
}

fn unknown(key: &str, known: &[&str]) -> String {
    match known.iter().find(|flag| **flag == key.replace('_', "-").to_lowercase()) {
        Some(flag) => format!("unknown key `{key}`; did you mean `{flag}`?"),
        None => format!("unknown key `{key}`; known are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::args::{Command as Chosen, LogLevel, ServeArgs};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn with_file(text: &str, argv: &[&str]) -> Result<Cli, Error> {
        let file = file(text);
        let config = ["--config", file.path().to_str().unwrap()];
        parse(["baton"].iter().chain(argv).chain(&config).map(Into::into))
    }

    fn serve(text: &str, flags: &[&str]) -> ServeArgs {
        let argv: Vec<&str> = ["serve"].iter().chain(flags).copied().collect();
        let Chosen::Serve(args) = with_file(text, &argv).unwrap().command else { unreachable!() };
        *args
    }

    fn complaint(text: &str) -> String {
        with_file(text, &["serve", "--model=m"]).unwrap_err().to_string()
    }

    #[test]
    fn clap_finds_no_fault_with_the_commands() {
        with_environment(Cli::command()).debug_assert();
    }

    #[test]
    fn a_flag_counts_more_than_the_file_and_that_more_than_the_default() {
        let text = "[serve]\nmodel = \"m\"\nport = 1\nkv-memory = \"2GiB\"\nno-prefix-cache = true\n[up]\nport = 2\n";
        let args = serve(text, &[]);
        assert_eq!((args.engine.model.as_str(), args.port, args.engine.block_tokens), ("m", 1, 16));
        assert_eq!(args.engine.kv_memory.unwrap().0, 2 << 30);
        assert!(args.engine.no_prefix_cache);
        let args = serve(text, &["--port=3", "--no-prefix-cache=false"]);
        assert_eq!((args.port, args.engine.no_prefix_cache), (3, false));
    }

    #[test]
    fn lists_and_the_settings_of_all_commands_may_be_in_the_file() {
        let text =
            "log-level = \"debug\"\n[route]\nprefill = [\"http://a\", \"http://b\"]\ndecode = \"http://c\"\n";
        let cli = with_file(text, &["route", "--decode=http://d"]).unwrap();
        assert_eq!(cli.common.log_level, LogLevel::Debug);
        let Chosen::Route(args) = cli.command else { unreachable!() };
        assert_eq!(args.prefill, ["http://a", "http://b"]);
        assert_eq!(args.decode, ["http://d"], "a flag replaces the list");
    }

    #[test]
    fn unknown_keys_are_named_in_whichever_table_they_are() {
        assert!(complaint("[route]\nlisen = \"x\"\n").contains("[route] unknown key `lisen`; known are "));
        assert!(
            complaint("[up]\nkv_memory = 1\n").contains("unknown key `kv_memory`; did you mean `kv-memory`?")
        );
        assert!(complaint("model = \"m\"\n").contains("unknown key `model`"));
        assert!(
            complaint("[engine]\nmodel = \"m\"\n").contains("unknown table [engine]; the tables are [up]")
        );
        assert!(complaint("serve = 1\n").contains("`serve` must be a table"));
        assert!(complaint("config = \"x\"\n").contains("unknown key `config`"), "a file names no file");
        assert!(complaint("[serve]\nhelp = true\n").contains("unknown key `help`"));
    }

    #[test]
    fn bad_values_are_blamed_on_the_file() {
        let error = complaint("[serve]\nport = 70000\n");
        assert!(error.contains("bad value \"70000\" of `port` in [serve]"), "{error}");
        let error = complaint("[serve]\ntransport = \"pigeon\"\n");
        assert!(error.contains("bad value \"pigeon\" of `transport` in [serve]"), "{error}");
        assert!(complaint("[serve]\nport = {a = 1}\n").contains("the value of `port` must be"));
        assert!(complaint("[serve\n").contains("TOML parse error"));
        let missing = parse(["baton", "serve", "--config=/none.toml"].map(Into::into)).unwrap_err();
        assert!(missing.to_string().contains("cannot read /none.toml"));
    }

    #[test]
    fn every_setting_has_a_variable() {
        let variables = variables();
        for name in
            ["BATON_CONFIG", "BATON_LOG_LEVEL", "BATON_SERVE_KV_MEMORY", "BATON_UP_PREFILL", "BATON_CHAT_URL"]
        {
            assert!(variables.iter().any(|v| v == name), "{name}");
        }
        let mut once = variables.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), variables.len(), "no variable means two things");
    }
}
