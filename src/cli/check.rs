//! `check`: every mistake in the settings, or the effective settings as `serve` would use them.

use std::process::ExitCode;

use super::settings::SettingsArgs;
use super::{EXIT_USAGE, print};
use crate::chain::Chain;
use crate::{app, config};

const EXAMPLES: &str = "\
Examples:
  onceproxy check --config onceproxy.toml
  onceproxy check --config onceproxy.toml --store redis://cache:6379 > effective.toml

The effective settings go to standard output, secrets masked; warnings and mistakes to standard error. The files that they
name (certificates, keys) are read too, here and now: check where the proxy is to run. Nothing is connected to and nothing
is made; whether the store can be used is told by `onceproxy store check`.
Exit codes: 0 they can be used, 2 they cannot.";

/// The arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Loads the settings and prints them.
pub(super) fn run(args: &Args) -> ExitCode {
    match args.settings.load() {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                super::say(&format!("warning: {warning}"));
            }
            let faults = app::check_files(&loaded.config);
            if faults.is_empty() {
                return print(&config::effective(&loaded.config));
            }
            let named = loaded.file.as_ref().map_or("settings".into(), |file| file.to_string_lossy());
            for fault in &faults {
                super::say(&format!("error: {named}: {}", Chain(fault)));
            }
            ExitCode::from(EXIT_USAGE)
        }
        Err(code) => code,
    }
}
