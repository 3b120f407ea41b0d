//! `check`: every mistake in the settings, or the effective settings as `serve` would use them.

use std::process::ExitCode;

use super::print;
use super::settings::SettingsArgs;
use crate::config;

const EXAMPLES: &str = "\
Examples:
  onceproxy check --config onceproxy.toml
  onceproxy check --config onceproxy.toml --store redis://cache:6379 > effective.toml

The effective settings go to standard output, secrets masked; warnings and mistakes to standard error.
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
            print(&config::effective(&loaded.config))
        }
        Err(code) => code,
    }
}
