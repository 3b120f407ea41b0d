//! `store`: what is done with the store itself, without a proxy. `check` tells whether the promise holds on it, `init`
//! prepares what a store needs once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::settings::StoreArgs;
use super::{EXIT_FAILURE, fail, misuse, print};
use crate::app::{self, Report, SECOND, Weight};
use crate::chain::Chain;

const CHECK_EXAMPLES: &str = "\
Examples:
  onceproxy store check --store redis://cache:6379
  onceproxy store check --config onceproxy.toml --json
  onceproxy store check --store disk:./onceproxy-data      (no proxy may be running on it)

It looks at how the store is set up, then takes a record of its own through its whole life: claimed, renewed, completed,
read, forgotten, doubted, resolved, released. Other records are not touched.
Exit codes: 0 the promise holds on this store, 1 it does not or the store cannot be reached, 2 wrong settings.";

/// The arguments of `store`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onceproxy store check --store redis://cache:6379
  onceproxy store init --store postgres://owner:PASSWORD@db/onceproxy")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reports how a store is set up, what it permits, how long it takes, and whether the promise holds on it.
    Check(CheckArgs),
    /// Makes what the store needs once: the schema in Postgres, also that of the second line. May be repeated.
    Init(InitArgs),
}

const INIT_EXAMPLES: &str = "\
Examples:
  onceproxy store init --store postgres://owner:PASSWORD@db/onceproxy
  onceproxy store init --config onceproxy.toml

Run it as a user that may create a schema; the proxy itself needs fewer rights, which are printed. What is there already is
left as it is.
Exit codes: 0 the store is prepared, 1 it could not be, 2 wrong settings.";

#[derive(Debug, clap::Args)]
#[command(after_help = INIT_EXAMPLES)]
struct InitArgs {
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES)]
struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// How long a store that cannot be reached is asked again, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    wait: u64,
}

/// Does what is asked.
pub(super) fn run(args: Args) -> ExitCode {
    match args.command {
        Command::Check(args) => check(&args),
        Command::Init(args) => init(&args),
    }
}

fn init(args: &InitArgs) -> ExitCode {
    let config = match args.store.load() {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    match app::init_store(&config) {
        Ok(lines) => print(&(lines.join("\n") + "\n")),
        Err(error) if error.is_wrong_settings() => misuse(&Chain(&error).to_string()),
        Err(error) => fail(&Chain(&error).to_string()),
    }
}

fn check(args: &CheckArgs) -> ExitCode {
    let config = match args.store.load() {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    match app::check_store(&config, Duration::from_secs(args.wait)) {
        Ok(report) => {
            let url = config.backend.to_string();
            let page = if args.json { as_json(&url, &report) } else { as_text(&url, &report) };
            let printed = print(&page);
            if report.broken().is_none() { printed } else { ExitCode::from(EXIT_FAILURE) }
        }
        Err(error) if error.is_wrong_settings() => misuse(&Chain(&error).to_string()),
        Err(error) => fail(&Chain(&error).to_string()),
    }
}

fn as_text(url: &str, report: &Report) -> String {
    let mut page = format!("{:<12} {url}\n", "store");
    for fact in &report.facts {
        page.push_str(&format!("{:<12} {}\n", fact.name, fact.value));
    }
    for (weight, heading) in [
        (Weight::Breaks, "The promise of one execution does NOT hold here:"),
        (Weight::Weakens, "It holds only as long as none of this happens:"),
    ] {
        let remarks: Vec<_> = report.of(weight).collect();
        if !remarks.is_empty() {
            page.push_str(&format!("\n{heading}\n"));
            page.extend(remarks.iter().map(|remark| format!("  - {remark}\n")));
        }
    }
    if report.remarks.is_empty() {
        page.push_str("\nThe promise of one execution holds on this store.\n");
    }
    page
}

fn as_json(url: &str, report: &Report) -> String {
    // What follows the fact `second` is about the second line, under the same names.
    let mut lines = report.facts.split(|fact| fact.name == SECOND).map(|facts| {
        facts.iter().map(|fact| (fact.name.to_owned(), json!(fact.value))).collect::<serde_json::Map<_, _>>()
    });
    let mut facts = lines.next().unwrap_or_default();
    facts.extend(lines.next().map(|second| ("second_line".to_owned(), json!(second))));
    let remarks = |weight| report.of(weight).collect::<Vec<_>>();
    let page = json!({
        "store": url,
        "holds": report.broken().is_none(),
        "facts": facts,
        "breaks": remarks(Weight::Breaks),
        "weakens": remarks(Weight::Weakens),
    });
    format!("{page:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.fact("topology", "one server");
        report
    }

    #[test]
    fn says_first_whether_the_promise_holds() {
        let sound = as_text("redis://cache:6379/0", &report());
        assert!(sound.starts_with("store        redis://cache:6379/0\ntopology     one server\n"), "{sound}");
        assert!(sound.ends_with("The promise of one execution holds on this store.\n"), "{sound}");
        let mut two = report();
        two.fact("second", "what follows");
        two.fact("topology", "another server");
        let json: serde_json::Value = serde_json::from_str(&as_json("", &two)).unwrap();
        assert_eq!(json["facts"]["topology"], "one server");
        assert_eq!(json["facts"]["second_line"]["topology"], "another server");
        let mut weak = report();
        weak.weakens("a restart forgets");
        let weak = as_text("", &weak);
        assert!(weak.contains("only as long as none of this happens:\n  - a restart forgets\n"), "{weak}");
        let mut broken = report();
        broken.breaks("it evicts");
        let text = as_text("", &broken);
        assert!(text.contains("does NOT hold here:\n  - it evicts\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&as_json("", &broken)).unwrap();
        assert_eq!((&json["holds"], &json["breaks"][0]), (&json!(false), &json!("it evicts")));
    }
}
