//! The flags that name settings, and what is made of them. Values are passed on as typed: [`crate::config`] reads them, so
//! that a wrong flag is reported with the file's mistakes, and reads the environment.

use std::path::PathBuf;
use std::process::ExitCode;

use reqwest::Url;
use secrecy::SecretString;

use super::client::{Client, base_of, parse_base};
use super::{EXIT_USAGE, misuse, say};
use crate::config::store::StoreConfig;
use crate::config::{self, Admin, Flags, Loaded, Mistake, Mistakes, Origin, Sources};

/// A place nobody serves (the discard port), for settings of which no route is wanted.
const NO_UPSTREAM: &str = "http://127.0.0.1:9";

/// The settings of `serve` and `check`.
#[derive(Debug, clap::Args)]
pub(super) struct SettingsArgs {
    /// The file with the settings (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect; port 0 takes a free one. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Where requests go, if there are no routes in a file.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Where records are kept: memory:, disk:DIR, redis://HOST:PORT, postgres://USER:PASSWORD@HOST/DB. [default: disk:./onceproxy-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The operator's listener, or off. [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<String>,
    /// What the route to --upstream is for: api, payment or webhook. [default: api]
    #[arg(long, value_name = "PRESET")]
    preset: Option<String>,
    /// The header that holds the key on the route to --upstream. [default: those of the preset]
    #[arg(long, value_name = "NAME")]
    key_header: Option<String>,
    /// Log one line a request, as log.requests does.
    #[arg(long)]
    log_requests: bool,
}

impl SettingsArgs {
    /// Where the settings come from.
    pub(super) fn sources(&self) -> Sources {
        let flags = Flags {
            listen: self.listen.clone(),
            upstream: self.upstream.clone(),
            store: self.store.clone(),
            admin_listen: self.admin_listen.clone(),
            preset: self.preset.clone(),
            key_header: self.key_header.clone(),
            log_requests: self.log_requests,
        };
        Sources::real(self.config.clone(), flags)
    }

    /// Loads the settings, or prints every mistake.
    pub(super) fn load(&self) -> Result<Loaded, ExitCode> {
        load(&self.sources())
    }
}

/// Loads these settings, or prints every mistake.
pub(super) fn load(sources: &Sources) -> Result<Loaded, ExitCode> {
    config::load(sources).map_err(|mistakes| report(&mistakes))
}

/// Which store a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// The file with the settings, of which only those of the store are used; else ONCEPROXY_CONFIG.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The store, instead of the one in the settings. [default: disk:./onceproxy-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

impl StoreArgs {
    /// The section `[store]` of all layers, or every mistake printed.
    pub(super) fn load(&self) -> Result<StoreConfig, ExitCode> {
        let flags = Flags { store: self.store.clone(), ..Flags::default() };
        let loaded = load_without_routes(Sources::real(self.config.clone(), flags)).map_err(|all| report(&all))?;
        Ok(loaded.config.store)
    }
}

/// Which proxy an operator's command talks to.
#[derive(Debug, clap::Args)]
pub(super) struct AdminArgs {
    /// The admin listener of the proxy. [default: the one of the settings, else 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_base)]
    admin: Option<Url>,
    /// The settings to take the admin listener and its token from; else ONCEPROXY_CONFIG and the environment.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Which proxy, and the token that it wants.
#[derive(Debug, clap::Args)]
pub(super) struct TokenAdminArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// A file that holds the admin token. [default: ONCEPROXY_ADMIN_TOKEN, or the settings' admin.token]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// The address that was given, or the one of the settings.
    pub(super) fn base(&self) -> Result<Url, ExitCode> {
        match &self.admin {
            Some(url) => Ok(url.clone()),
            None => base_of_settings(&self.settings()?),
        }
    }

    fn settings(&self) -> Result<Admin, ExitCode> {
        let sources = Sources::real(self.config.clone(), Flags::default());
        let (admin, others) = config::load_admin(&sources).map_err(|mistakes| report(&mistakes))?;
        for mistake in others {
            say(&format!("warning: {mistake}"));
        }
        Ok(admin)
    }
}

impl TokenAdminArgs {
    /// A client for the proxy that is meant. Settings are read only for what no flag says.
    pub(super) fn client(&self) -> Result<Client, ExitCode> {
        let (base, token) = match (&self.admin.admin, &self.admin_token_file) {
            (Some(url), Some(file)) => (url.clone(), Some(read_token(file)?)),
            (None, Some(file)) => (self.admin.base()?, Some(read_token(file)?)),
            (Some(url), None) => (url.clone(), self.admin.settings()?.token),
            (None, None) => {
                let settings = self.admin.settings()?;
                (base_of_settings(&settings)?, settings.token)
            }
        };
        Client::new(base, token).map_err(|error| error.report())
    }
}

/// The settings for a command that needs no route, so it does not miss one.
fn load_without_routes(mut sources: Sources) -> Result<Loaded, Mistakes> {
    config::load(&sources).or_else(|mistakes| match mistakes.0.as_slice() {
        [Mistake { origin: Origin::BuiltIn, key, .. }] if key == "upstream" => {
            sources.flags.upstream = Some(NO_UPSTREAM.to_owned());
            config::load(&sources)
        }
        _ => Err(mistakes),
    })
}

fn base_of_settings(admin: &Admin) -> Result<Url, ExitCode> {
    match admin.listen {
        Some(listen) if listen.port() != 0 => Ok(base_of(listen)),
        Some(_) => Err(misuse("admin.listen takes any free port; give the one it got as --admin ADDRESS:PORT")),
        None => Err(misuse("admin.listen is off in these settings; name a listener by --admin ADDRESS:PORT")),
    }
}

fn read_token(file: &PathBuf) -> Result<SecretString, ExitCode> {
    match std::fs::read_to_string(file) {
        Ok(text) if !text.trim().is_empty() => Ok(SecretString::from(text.trim())),
        Ok(_) => Err(misuse(&format!("{} is empty; it should hold the admin token", file.display()))),
        Err(error) => Err(misuse(&format!("{} cannot be read: {error}", file.display()))),
    }
}

fn report(mistakes: &Mistakes) -> ExitCode {
    for mistake in &mistakes.0 {
        say(&format!("error: {mistake}"));
    }
    ExitCode::from(EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    fn sources(environment: Environment) -> Sources {
        let mut sources = Sources::default();
        sources.environment = environment;
        sources
    }

    #[test]
    fn an_operators_command_needs_no_route() {
        let (admin, _) = config::load_admin(&sources(Environment::empty())).unwrap();
        assert_eq!(base_of_settings(&admin).unwrap().as_str(), "http://127.0.0.1:9090/");
        let elsewhere = Environment::empty().with("ONCEPROXY_ADMIN_LISTEN", "127.0.0.1:7070");
        let (admin, _) = config::load_admin(&sources(elsewhere)).unwrap();
        assert_eq!(base_of_settings(&admin).unwrap().as_str(), "http://127.0.0.1:7070/");
    }

    #[test]
    fn mistakes_about_the_listener_are_not_passed_over() {
        let wrong = Environment::empty().with("ONCEPROXY_ADMIN_LISTEN", "nowhere");
        let mistakes = config::load_admin(&sources(wrong)).unwrap_err();
        assert!(mistakes.to_string().contains("ONCEPROXY_ADMIN_LISTEN"), "{mistakes}");
    }
}
