//! What is printed: durations, sizes and URLs read back, and no secret in anything.

use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::store::Backend;
use super::values::{duration, print_duration, print_size, size};
use super::*;

proptest! {
    #[test]
    fn a_printed_duration_reads_back(millis in 0u64..=3650 * 24 * 3_600_000) {
        let value = Duration::from_millis(millis);
        prop_assert_eq!(duration(&print_duration(value)), Ok(value));
    }

    #[test]
    fn a_printed_size_reads_back(bytes in 0usize..1 << 40) {
        prop_assert_eq!(size(0, 1 << 40)(&print_size(bytes as u64)), Ok(bytes));
    }

    #[test]
    fn a_password_reaches_the_store_as_it_was_meant(password in ".{1,20}") {
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let Ok(Backend::Redis(redis)) = store_url::parse(&format!("redis://:{encoded}@h")) else { panic!("refused") };
        let read = redis.password.unwrap();
        prop_assert_eq!(read.given().unwrap().expose_secret(), password.as_str());
    }

    #[test]
    fn printed_status_lists_say_the_same(picks in proptest::collection::vec((200u16..600, 0usize..3), 0..300)) {
        let mut policy = StatusPolicy::record_all();
        picks.iter().for_each(|(status, verdict)| policy.set(*status, statuses::Verdict::ALL[*verdict]));
        prop_assert!(policy.lists().policy() == policy);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "([a-z_]{1,8} ?= ?[\"\\[{0-9a-z\\]}:/.]{0,12}\n|\\[{1,2}(route|store|log)\\]{1,2}\n){0,8}") {
        let _ = load(&Sources::text(text));
    }
}

#[test]
fn durations_print_in_the_largest_whole_unit() {
    for text in ["0s", "250ms", "1500ms", "30s", "90s", "5m", "24h", "30d"] {
        let shortest = if text == "24h" { "1d" } else { text };
        assert_eq!(print_duration(duration(text).unwrap()), shortest);
    }
}

const SECRETS: &str =
    "[admin]\ntoken = \"s3cr3t-token\"\n[store]\nurl = \"rediss://us%20er:s3cr3t%2Fpass@[::1]:7000/3\"\n";

#[test]
fn secrets_are_read_and_never_printed() {
    let loaded = loaded(&format!("{SECRETS}{}", route_with("")));
    let Backend::Redis(redis) = &loaded.config.store.backend else { panic!("not Redis") };
    let store::Topology::One(place) = &redis.topology else { panic!("not one server") };
    assert_eq!((place.host.as_str(), place.port, redis.db), ("::1", 7000, 3));
    assert_eq!(redis.username.as_deref(), Some("us er"));
    assert_eq!(redis.password.as_ref().and_then(|password| password.given()).unwrap().expose_secret(), "s3cr3t/pass");
    let printed = effective(&loaded.config);
    assert!(printed.contains("token = \"***\""), "{printed}");
    assert!(printed.contains("url = \"rediss://us%20er:***@[::1]:7000/3\""), "{printed}");
    for text in [printed, format!("{loaded:?}")] {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}

#[test]
fn a_unix_socket_of_redis_has_its_login_behind_it() {
    let url = "redis+unix:///run/re%20dis.sock?user=us%26er&pass=s3cr3t%26?/&db=3";
    let loaded = loaded(&format!("[store]\nurl = {url:?}\n{}", route_with("")));
    let Backend::Redis(redis) = &loaded.config.store.backend else { panic!("not Redis") };
    let store::Topology::Socket(path) = &redis.topology else { panic!("not a socket") };
    assert_eq!((path.to_str(), redis.db), (Some("/run/re dis.sock"), 3));
    assert_eq!(redis.username.as_deref(), Some("us&er"));
    assert_eq!(redis.password.as_ref().and_then(|password| password.given()).unwrap().expose_secret(), "s3cr3t&?/");
    let printed = effective(&loaded.config);
    assert!(printed.contains("url = \"redis+unix:///run/re%20dis.sock?db=3&user=us%26er&pass=***\""), "{printed}");
    assert!(!format!("{loaded:?}").contains("s3cr3t"));
}

#[test]
fn a_unix_socket_of_postgres_is_in_the_folder_that_is_its_host() {
    let url = "postgres://onceproxy:s3cr3t@/payments?host=/run/post%20gres/&port=6432";
    let loaded = loaded(&format!("[store]\nurl = {url:?}\n{}", route_with("")));
    let Backend::Postgres(postgres) = &loaded.config.store.backend else { panic!("not Postgres") };
    assert_eq!(postgres.socket().as_deref(), Some(Path::new("/run/post gres/.s.PGSQL.6432")));
    let printed = effective(&loaded.config);
    let masked = "url = \"postgres://onceproxy:***@/payments?host=/run/post%20gres&port=6432\"";
    assert!(printed.contains(masked), "{printed}");
}

#[test]
fn masked_settings_load_again_with_a_warning_for_each_mask() {
    let config = loaded(&format!("{SECRETS}{}", route_with(""))).config;
    let again = loaded(&effective(&config));
    assert_eq!(format!("{:?}", again.config), format!("{config:?}"));
    let keys: Vec<_> = again.warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(keys, ["admin.token", "store.url"]);
}

#[test]
fn no_message_repeats_a_secret() {
    let places = [
        "[admin]\ntoken = \"s3cr3t token\"\n",
        "[admin]\ntoken = [\"s3cr3t\"]\n",
        "[admin]\ntoken = \"s3cr3t\n",
        "[store]\nurl = \"redis://s3cr3t@h\"\n",
        "[store]\nurl = \"redis://u:s3cr3t/@h\"\n",
        "[store]\nurl = \"redis://u:s3cr3t#@h\"\n",
        "[store]\nurl = \"redis://u:s3cr3t%zz@h\"\n",
        "[store]\nurl = \"redis://u:s3cr3t@h:port\"\n",
        "[store]\nurl = \"rediss:u:s3cr3t@h\"\n",
        "[store]\nurl = \"s3cr3t\"\n",
        "[store]\nurl = \"redis+unix://u:s3cr3t@/h\"\n",
        "[store]\nurl = \"redis+unix:///h?pass=a&s3cr3t\"\n",
        "[store]\nurl = \"redis+unix:///h?pass=s3cr3t&pass=s3cr3t\"\n",
        "[store]\nurl = \"redis+unix:///h?db=s3cr3t\"\n",
        "[store]\nurl = \"rediss+unix:///h?pass=s3cr3t\"\n",
        "[store]\nurl = \"postgres://u:p@/d?host=s3cr3t\"\n",
        "[store]\nurl = \"postgres://u:p@/d?port=s3cr3t\"\n",
        "[store]\nurl = [\"redis://u:s3cr3t@h\"]\n",
        "[[route]]\nname = \"x\"\nupstream = \"http://u:s3cr3t@h\"\n",
        "[[route]]\nname = \"x\"\nupstream = \"u:s3cr3t@h\"\n",
        "[[route]]\nname = \"x\"\nupstream = \"http://h/?token=s3cr3t\"\n",
    ];
    for text in places {
        let all = mistakes(&format!("{text}{}", route_with(""))).join("\n");
        assert!(!all.contains("s3cr3t"), "{text}: {all}");
    }
}
