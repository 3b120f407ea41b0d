//! `serve`: settings in, [`crate::app`] until it stops.

use std::process::ExitCode;

use super::settings::{self, SettingsArgs};
use super::{fail, misuse};
use crate::app;
use crate::chain::Chain;

const EXAMPLES: &str = "\
Examples:
  onceproxy serve --config onceproxy.toml
  onceproxy serve --upstream http://127.0.0.1:3000
  onceproxy serve --upstream http://127.0.0.1:3000 --preset payment --key-header X-Payment-Id --log-requests
  onceproxy serve --listen 127.0.0.1:0 --upstream https://api.example.com --store redis://127.0.0.1:6379

Without a file there is one route, `default`, to --upstream; --preset and --key-header are about it. SIGTERM or SIGINT stops it: running requests end first.
SIGHUP, or a file that holds something else, reloads the settings.
Exit codes: 0 stopped as told, 2 wrong usage or settings, 1 the rest, such as a port in use.";

/// The arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Runs the proxy until it is told to stop.
pub(super) fn run(args: &Args) -> ExitCode {
    let sources = args.settings.sources();
    let loaded = match settings::load(&sources) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    match app::run(loaded, sources) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_wrong_settings() => misuse(&Chain(&error).to_string()),
        Err(error) => fail(&Chain(&error).to_string()),
    }
}
