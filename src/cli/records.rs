//! `records`: what an operator does about open records, through the admin listener of a running proxy.
//!
//! The objects are shown as they come: a member that a newer proxy adds is not lost, and one that is missing is a dash.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{ArgGroup, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Map, Value, json};

use super::client::{CallError, Client};
use super::settings::TokenAdminArgs;
use super::{misuse, print, say};

mod table;

pub(super) use table::describe;

const EXAMPLES: &str = "\
Examples:
  onceproxy records list --state unknown
  onceproxy records show payments:3fa94c0e8f1b4d5aa2c7e6d9b1f0a3c4
  onceproxy records resolve ID --token TOKEN --not-executed --note 'not in the bank file'
  onceproxy records resolve ID --token TOKEN --executed --status 201 --body '{\"id\": 7}'
  onceproxy records forget ID --token TOKEN

A record that is unknown waits for a person: find out whether the upstream ran the request, then resolve it. TOKEN is the
one that the record shows; it makes sure that you speak about the attempt that you looked at.

Exit codes: 0 done, 2 wrong usage, 1 the rest: no such record, a record that changed, no answer.";

const LIST_EXAMPLES: &str = "\
Examples:
  onceproxy records list --state unknown --route payments
  onceproxy records list --limit 5000 --json | jq -r '.records[].id'";

const SHOW_EXAMPLES: &str = "\
Example:
  onceproxy records show payments:3fa94c0e8f1b4d5aa2c7e6d9b1f0a3c4";

const RESOLVE_EXAMPLES: &str = "\
Examples:
  onceproxy records resolve ID --token TOKEN --not-executed
      no attempt ran: the key is free again, and the next request with it is forwarded
  onceproxy records resolve ID --token TOKEN --executed --status 201 \\
      --header 'content-type: application/json' --body-file answer.json
      it ran: duplicates get this answer from now on

Not-executed is refused while the last attempt may still be running (until the record's abandon_at); --force says that it
certainly is not.";

const FORGET_EXAMPLES: &str = "\
Example:
  onceproxy records forget ID --token TOKEN --note 'redelivery wanted'
      the key may run again, whatever happened before";

/// The largest page that the admin listener gives.
const PAGE: usize = 1000;

/// The arguments of `records`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists open records: claimed and unknown ones.
    List(ListArgs),
    /// Shows one record, completed ones too.
    Show(ShowArgs),
    /// Ends an unknown record by what you found out.
    Resolve(ResolveArgs),
    /// Removes a completed record, so that its key may run again.
    Forget(ForgetArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OpenState {
    Claimed,
    Unknown,
}

#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
struct ListArgs {
    /// Only records in this state.
    #[arg(long)]
    state: Option<OpenState>,
    /// Only records of this route.
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// At most this many.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Prints JSON, as the admin listener gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: TokenAdminArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
struct ShowArgs {
    /// The record's id, as lists, problems and logs show it.
    #[arg(value_parser = parse_id)]
    id: String,
    /// Prints JSON, as the admin listener gives it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: TokenAdminArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = RESOLVE_EXAMPLES)]
#[command(group = ArgGroup::new("outcome").required(true).args(["executed", "not_executed"]))]
struct ResolveArgs {
    /// The record's id.
    #[arg(value_parser = parse_id)]
    id: String,
    /// The record's token, as `records show` prints it.
    #[arg(long)]
    token: String,
    /// The upstream ran it; duplicates get the answer described by --status, --header and --body.
    #[arg(long, requires = "status")]
    executed: bool,
    /// No attempt ran, and the key is free again.
    #[arg(long)]
    not_executed: bool,
    /// The status of the answer.
    #[arg(long, value_name = "CODE", conflicts_with = "not_executed", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// A header of the answer; may be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with = "not_executed", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// The body of the answer. [default: empty]
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["not_executed", "body_file"])]
    body: Option<String>,
    /// A file with the body of the answer; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "not_executed")]
    body_file: Option<PathBuf>,
    /// Says not-executed although the last attempt may still be running.
    #[arg(long)]
    force: bool,
    /// Why; it is written to the proxy's log.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    admin: TokenAdminArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = FORGET_EXAMPLES)]
struct ForgetArgs {
    /// The record's id.
    #[arg(value_parser = parse_id)]
    id: String,
    /// The record's token, as `records show` prints it.
    #[arg(long)]
    token: String,
    /// Removes the record although it is open: a request that may have run may run again.
    #[arg(long)]
    force: bool,
    /// Why; it is written to the proxy's log.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    admin: TokenAdminArgs,
}

/// Does one of the four.
pub(super) fn run(args: Args) -> ExitCode {
    let done = match args.command {
        Command::List(args) => list(&args),
        Command::Show(args) => show(&args),
        Command::Resolve(args) => resolve(args),
        Command::Forget(args) => forget(args),
    };
    done.unwrap_or_else(|code| code)
}

fn list(args: &ListArgs) -> Result<ExitCode, ExitCode> {
    let client = args.admin.client()?;
    let (records, cursor) = pages(&client, args).map_err(|error| error.report())?;
    if args.json {
        return Ok(print(&pretty(&json!({"records": records, "cursor": cursor}))));
    }
    if records.is_empty() {
        say("no open records");
        return Ok(ExitCode::SUCCESS);
    }
    let code = print(&table::render(&records));
    if !cursor.is_null() {
        say(&format!("there are more than {}; raise --limit", args.limit));
    }
    Ok(code)
}

/// Follows cursors until there are enough records or no more; also returns where to go on.
fn pages(client: &Client, args: &ListArgs) -> Result<(Vec<Value>, Value), CallError> {
    let wanted = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut records = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut query = vec![("limit", (wanted - records.len()).min(PAGE).to_string())];
        let state = args.state.map(|state| match state {
            OpenState::Claimed => "claimed",
            OpenState::Unknown => "unknown",
        });
        query.extend(state.map(|state| ("state", state.to_owned())));
        query.extend(args.route.clone().map(|route| ("route", route)));
        query.extend(cursor.as_str().map(|cursor| ("cursor", cursor.to_owned())));
        let mut page = client.call_json(Method::GET, &["records"], &query, None)?;
        if let Value::Array(more) = page["records"].take() {
            records.extend(more);
        }
        cursor = page["cursor"].take();
        if records.len() >= wanted || cursor.is_null() {
            return Ok((records, cursor));
        }
    }
}

fn show(args: &ShowArgs) -> Result<ExitCode, ExitCode> {
    let client = args.admin.client()?;
    let record = client.call_json(Method::GET, &["records", &args.id], &[], None).map_err(|error| error.report())?;
    Ok(print(&if args.json { pretty(&record) } else { format!("{}\n", describe(&record)) }))
}

fn resolve(args: ResolveArgs) -> Result<ExitCode, ExitCode> {
    let client = args.admin.client()?;
    let mut body = Map::new();
    body.insert("token".to_owned(), json!(args.token));
    body.insert("outcome".to_owned(), json!(if args.executed { "executed" } else { "not-executed" }));
    if args.executed {
        body.insert("response".to_owned(), response(&args)?);
    }
    if args.force {
        body.insert("force".to_owned(), json!(true));
    }
    body.extend(args.note.map(|note| ("note".to_owned(), json!(note))));
    let path = ["records", &args.id, "resolve"];
    client.call_json(Method::POST, &path, &[], Some(&Value::Object(body))).map_err(|error| error.report())?;
    Ok(print(&match args.status {
        Some(status) => format!("{} is completed: duplicates are answered with {status}\n", args.id),
        None => format!("{} is absent: the next request with its key is forwarded\n", args.id),
    }))
}

fn response(args: &ResolveArgs) -> Result<Value, ExitCode> {
    let mut response = json!({"status": args.status, "headers": args.headers});
    let body = match (&args.body, &args.body_file) {
        (Some(text), _) => Some(text.clone().into_bytes()),
        (None, Some(file)) => {
            Some(read_body(file).map_err(|error| misuse(&format!("{} cannot be read: {error}", file.display())))?)
        }
        (None, None) => None,
    };
    match body.map(String::from_utf8) {
        Some(Ok(text)) => response["body"] = json!(text),
        Some(Err(error)) => response["body_base64"] = json!(STANDARD.encode(error.as_bytes())),
        None => {}
    }
    Ok(response)
}

fn read_body(file: &Path) -> std::io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file);
    }
    let mut body = Vec::new();
    std::io::stdin().lock().read_to_end(&mut body)?;
    Ok(body)
}

fn forget(args: ForgetArgs) -> Result<ExitCode, ExitCode> {
    let client = args.admin.client()?;
    let mut query = vec![("token", args.token)];
    if args.force {
        query.push(("force", "true".to_owned()));
    }
    query.extend(args.note.map(|note| ("note", note)));
    client.call_json(Method::DELETE, &["records", &args.id], &query, None).map_err(|error| error.report())?;
    Ok(print(&format!("{} is forgotten: the next request with its key is forwarded\n", args.id)))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn parse_id(text: &str) -> Result<String, &'static str> {
    let hash = text.rsplit_once(':').map(|(_, hash)| hash).filter(|hash| hash.len() == 32);
    match hash {
        Some(hash) if hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) => Ok(text.to_owned()),
        _ => Err("an id is ROUTE:HASH with 32 lower-case hex characters after the last colon"),
    }
}

fn parse_header(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("write it as 'NAME: VALUE'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    const ID: &str = "payments:3fa94c0e8f1b4d5aa2c7e6d9b1f0a3c4";

    fn resolve_line(rest: &[&str]) -> Result<ResolveArgs, String> {
        let line = ["records", "resolve", ID, "--token", "T"].iter().chain(rest);
        match Line::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Resolve(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_outcome_is_needed_and_only_one_and_what_belongs_to_it() {
        for (rest, says) in [
            (&[][..], "<--executed|--not-executed>"),
            (&["--executed"], "--status <CODE>"),
            (&["--executed", "--not-executed", "--status", "200"], "cannot be used with"),
            (&["--not-executed", "--status", "200"], "cannot be used with"),
            (&["--not-executed", "--body", "x"], "cannot be used with"),
            (&["--executed", "--status", "199"], "199 is not in 200..=599"),
            (&["--executed", "--status", "200", "--header", "x"], "'NAME: VALUE'"),
            (&["--executed", "--status", "200", "--body", "x", "--body-file", "f"], "cannot be used with"),
        ] {
            let error = resolve_line(rest).expect_err(&rest.join(" "));
            assert!(error.contains(says), "{rest:?}: {error}");
        }
        assert!(Line::try_parse_from(["records", "show", "payments"]).unwrap_err().to_string().contains("ROUTE:HASH"));
    }

    #[test]
    fn an_answer_is_sent_as_it_was_given() {
        let args = ["--executed", "--status", "201", "--header", "a:  b: c ", "--header", "a: 2", "--body", "ä"];
        let response = response(&resolve_line(&args).unwrap()).unwrap();
        assert_eq!(response, json!({"status": 201, "headers": [["a", "b: c"], ["a", "2"]], "body": "ä"}));
    }

    #[test]
    fn bytes_that_are_no_text_are_sent_as_base64() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answer");
        std::fs::write(&file, b"\x00\xff").unwrap();
        let args = ["--executed", "--status", "200", "--body-file", file.to_str().unwrap()];
        let response = response(&resolve_line(&args).unwrap()).unwrap();
        assert_eq!(response, json!({"status": 200, "headers": [], "body_base64": "AP8="}));
    }
}
