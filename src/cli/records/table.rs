//! How records look on a terminal: a table of many, a list of members of one.

use serde_json::Value;

const COLUMNS: [&str; 7] = ["id", "state", "reason", "attempts", "claimed_at", "abandon_at", "token"];

const MEMBERS: [&str; 11] = [
    "id",
    "route",
    "state",
    "token",
    "attempts",
    "claimed_at",
    "lease_until",
    "abandon_at",
    "expires_at",
    "reason",
    "original_status",
];

/// A table with a head, one record a line.
pub(super) fn render(records: &[Value]) -> String {
    let head = COLUMNS.map(|column| column.to_uppercase().replace('_', " "));
    let rows: Vec<_> = records.iter().map(|record| COLUMNS.map(|column| shown(&record[column]))).collect();
    let mut widths = head.each_ref().map(|cell| cell.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&head).chain(&rows) {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The members of one record that apply, one a line, without a line break at the end.
pub(in crate::cli) fn describe(record: &Value) -> String {
    let width = MEMBERS.iter().map(|member| member.len()).max().unwrap_or_default();
    let lines: Vec<_> = MEMBERS
        .iter()
        .filter(|member| !record[**member].is_null())
        .map(|member| format!("{member:width$}  {}", shown(&record[*member])))
        .collect();
    lines.join("\n")
}

/// A value as a cell. What comes from elsewhere must not steer the terminal.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = render(&[
            json!({"id": "a:1", "state": "claimed", "attempts": 1, "reason": null, "token": "t"}),
            json!({"id": "longer:1", "state": "unknown", "attempts": 12, "reason": "lapsed\u{1b}[2J", "token": "t"}),
        ]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "ID        STATE    REASON      ATTEMPTS  CLAIMED AT  ABANDON AT  TOKEN");
        assert_eq!(lines[1], "a:1       claimed  -           1         -           -           t");
        assert_eq!(lines[2], "longer:1  unknown  lapsed?[2J  12        -           -           t");
    }

    #[test]
    fn one_record_shows_what_applies_in_the_order_of_the_contract() {
        let text = describe(&json!({"state": "unknown", "id": "a:1", "reason": null, "attempts": 2}));
        assert_eq!(text, "id               a:1\nstate            unknown\nattempts         2");
    }
}
