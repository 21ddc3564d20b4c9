//! Change windows: times at which the controller is allowed to sync.

use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use jiff::civil::{Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::file::Window;
use pleach_model::finding::Finding;
use pleach_model::object::Located;

/// Set of change windows. They are open inside any allow window and outside all deny windows.
/// Without allow windows, any time is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    allow: Vec<Span>,
    deny: Vec<Span>,
    /// Windows as written in the file.
    declared: Vec<Window>,
    /// Further sets that must be open, too.
    also: Vec<Self>,
}

impl Hash for Windows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            // Read from `declared`.
            allow: _,
            deny: _,
            declared,
            also,
        } = self;
        (declared, also).hash(state);
    }
}

/// A time span on some days of the week. It can extend past midnight.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    days: Vec<Weekday>,
    /// Start in minutes since midnight.
    from: i32,
    /// End in minutes since midnight. More than a day if it extends past midnight.
    to: i32,
    zone: TimeZone,
}

const DAYS: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

const DAY: i32 = 24 * 60;

impl Windows {
    /// Adds a window. The error describes an invalid one.
    pub fn add(&mut self, window: &Window) -> Result<(), String> {
        let zone = match window.time_zone.as_deref() {
            None => TimeZone::UTC,
            // The bundled time zone database is the same on every machine.
            Some(name) => TimeZoneDatabase::bundled()
                .get(name)
                .map_err(|_| format!("`{name}` is not a time zone such as `Europe/Berlin`"))?,
        };
        match (&window.allow, &window.deny) {
            (Some(text), None) => self.allow.push(Span::read(text, zone)?),
            (None, Some(text)) => self.deny.push(Span::read(text, zone)?),
            _ => return Err("a window needs either `allow` or `deny`".to_owned()),
        }
        self.declared.push(window.clone());
        Ok(())
    }

    /// Resolves the `windows` of a section. Omits the invalid ones, which are reported.
    pub fn resolve(
        section: &str,
        declared: Option<Vec<Located<Window>>>,
        findings: &mut Vec<Finding>,
    ) -> Self {
        let mut windows = Self::default();
        for window in declared.into_iter().flatten() {
            if let Err(message) = windows.add(&window) {
                let message = format!("`{section}.windows`: {message}");
                findings.push(window.places.invalid(message));
            }
        }
        windows
    }

    /// Returns windows that are open when both are. Adds no set that is there already.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for set in other.sets() {
            if !self.sets().contains(&set) {
                self.also.push(set);
            }
        }
        self
    }

    /// Returns the sets that must all be open, each without further sets.
    fn sets(&self) -> Vec<Self> {
        let own = Self {
            also: Vec::new(),
            ..self.clone()
        };
        let own = Some(own).filter(|own| *own != Self::default());
        let also = self.also.iter().flat_map(Self::sets);
        own.into_iter().chain(also).collect()
    }

    /// Returns the windows as written, one list for each set.
    pub fn declared(&self) -> Vec<Vec<Window>> {
        let own = Some(self.declared.clone()).filter(|declared| !declared.is_empty());
        let also = self.also.iter().flat_map(Self::declared);
        own.into_iter().chain(also).collect()
    }

    /// Reads the result of [`Self::declared`]. Omits windows that this version cannot read.
    pub fn recorded(sets: &[Vec<Window>]) -> Self {
        sets.iter().fold(Self::default(), |all, set| {
            let mut windows = Self::default();
            for window in set {
                // A window that this version cannot read was written by another version.
                drop(windows.add(window));
            }
            all.and(&windows)
        })
    }

    /// Returns whether the controller is allowed to sync at a time.
    pub fn are_open(&self, at: Timestamp) -> bool {
        let holds = |spans: &[Span]| spans.iter().any(|span| span.holds(at));
        (self.allow.is_empty() || holds(&self.allow))
            && !holds(&self.deny)
            && self.also.iter().all(|windows| windows.are_open(at))
    }

    /// Returns the first minute after a time at which the windows are open. `None` if they never
    /// are.
    pub fn open_after(&self, at: Timestamp) -> Option<Timestamp> {
        let minute = at.as_second().div_euclid(60) + 1;
        // Windows repeat weekly. Add a day for daylight saving changes.
        let minutes = minute..=minute + i64::from(8 * DAY);
        minutes
            .filter_map(|minute| Timestamp::from_second(minute * 60).ok())
            .find(|at| self.are_open(*at))
    }
}

impl Span {
    fn read(text: &str, zone: TimeZone) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a window such as `Mon-Fri 08:00-16:00`");
        let (days, times) = match text.trim().rsplit_once(' ') {
            Some((days, times)) => (days_of(days).ok_or_else(wrong)?, times),
            None => (DAYS.map(|(_, day)| day).to_vec(), text.trim()),
        };
        let (from, to) = times.split_once('-').ok_or_else(wrong)?;
        let from = minutes(from).filter(|from| *from < DAY).ok_or_else(wrong)?;
        let to = minutes(to).ok_or_else(wrong)?;
        if from == to {
            return Err(format!("`{text}` is an empty window"));
        }
        Ok(Self {
            days,
            from,
            to: if to < from { to + DAY } else { to },
            zone,
        })
    }

    fn holds(&self, at: Timestamp) -> bool {
        let local = at.to_zoned(self.zone.clone());
        let now = minute_of(local.time());
        let today = local.weekday();
        let is_day = |day: Weekday| self.days.contains(&day);
        (is_day(today) && (self.from..self.to).contains(&now))
            // A span that started yesterday.
            || (is_day(today.previous()) && (self.from..self.to).contains(&(now + DAY)))
    }
}

fn minute_of(time: Time) -> i32 {
    i32::from(time.hour()) * 60 + i32::from(time.minute())
}

/// Parses `Mon`, `Mon-Fri` or `Mon,Wed,Fri`.
fn days_of(text: &str) -> Option<Vec<Weekday>> {
    let day = |name: &str| {
        let name = name.trim();
        DAYS.iter().position(|(known, _)| *known == name)
    };
    let mut days = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let last = if last < first { last + 7 } else { last };
        days.extend((first..=last).map(|index| DAYS[index % 7].1));
    }
    Some(days)
}

/// Parses `08:00` into minutes since midnight. `24:00` is the end of a day.
fn minutes(text: &str) -> Option<i32> {
    let (hour, minute) = text.trim().split_once(':')?;
    if hour.len() != 2 || minute.len() != 2 {
        return None;
    }
    let (hour, minute): (i32, i32) = (hour.parse().ok()?, minute.parse().ok()?);
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) || (hour, minute) == (24, 0);
    is_time.then_some(hour * 60 + minute)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn windows(allow: &[&str], deny: &[&str], zone: Option<&str>) -> Result<Windows, String> {
        let mut windows = Windows::default();
        let of = |text: &&str| Some((*text).to_owned());
        for text in allow {
            windows.add(&Window {
                allow: of(text),
                deny: None,
                time_zone: zone.map(str::to_owned),
            })?;
        }
        for text in deny {
            windows.add(&Window {
                allow: None,
                deny: of(text),
                time_zone: zone.map(str::to_owned),
            })?;
        }
        Ok(windows)
    }

    /// 2026-01-05 is a Monday.
    #[rstest]
    #[case::within(&["Mon-Fri 08:00-16:00"], &[], "2026-01-05T08:00:00Z", true)]
    #[case::its_end_is_not_in_it(&["Mon-Fri 08:00-16:00"], &[], "2026-01-05T16:00:00Z", false)]
    #[case::another_day(&["Mon-Fri 08:00-16:00"], &[], "2026-01-10T09:00:00Z", false)]
    #[case::one_of_two(&["Mon 08:00-09:00", "Sat 08:00-10:00"], &[], "2026-01-10T09:00:00Z", true)]
    #[case::nothing_declared(&[], &[], "2026-01-10T09:00:00Z", true)]
    #[case::denied(&[], &["Sat,Sun 00:00-24:00"], "2026-01-10T23:59:00Z", false)]
    #[case::denied_wins(&["Mon-Sun 00:00-24:00"], &["Sat 08:00-10:00"], "2026-01-10T09:00:00Z", false)]
    #[case::over_midnight(&["Fri 22:00-04:00"], &[], "2026-01-10T03:59:00Z", true)]
    #[case::not_the_night_before(&["Fri 22:00-04:00"], &[], "2026-01-09T03:59:00Z", false)]
    #[case::over_the_week(&["Sat-Mon 10:00-11:00"], &[], "2026-01-05T10:30:00Z", true)]
    #[case::every_day(&["10:00-11:00"], &[], "2026-01-07T10:30:00Z", true)]
    fn windows_open_and_close(
        #[case] allow: &[&str],
        #[case] deny: &[&str],
        #[case] at: &str,
        #[case] open: bool,
    ) {
        let windows = windows(allow, deny, None).unwrap();
        assert_eq!(windows.are_open(at.parse().unwrap()), open);
    }

    #[rstest]
    #[case::today(&["Mon-Fri 08:00-16:00"], &[], "2026-01-05T07:59:30Z", Some("2026-01-05T08:00:00Z"))]
    #[case::at_the_end_of_a_denied_span(&[], &["08:00-16:00"], "2026-01-05T08:00:00Z", Some("2026-01-05T16:00:00Z"))]
    #[case::in_a_week(&["Mon 08:00-09:00"], &[], "2026-01-05T09:00:00Z", Some("2026-01-12T08:00:00Z"))]
    #[case::both(&["Mon 08:00-10:00"], &["Mon 08:00-09:00"], "2026-01-05T01:00:00Z", Some("2026-01-05T09:00:00Z"))]
    #[case::never(&[], &["00:00-24:00"], "2026-01-05T01:00:00Z", None)]
    fn the_next_opening_is_known(
        #[case] allow: &[&str],
        #[case] deny: &[&str],
        #[case] at: &str,
        #[case] opens: Option<&str>,
    ) {
        let windows = windows(allow, deny, None).unwrap();
        let opens = opens.map(|at| at.parse().unwrap());
        assert_eq!(windows.open_after(at.parse().unwrap()), opens);
    }

    #[test]
    fn windows_follow_their_time_zone() {
        let windows = windows(&["08:00-16:00"], &[], Some("Europe/Berlin")).unwrap();
        for (at, open) in [
            ("2026-01-05T07:00:00Z", true),
            ("2026-01-05T06:59:00Z", false),
            ("2026-07-06T06:00:00Z", true),
            ("2026-07-06T14:00:00Z", false),
        ] {
            assert_eq!(windows.are_open(at.parse().unwrap()), open, "{at}");
        }
    }

    #[rstest]
    #[case("Mon-Fri")]
    #[case("Mon-Fri 8:00-16:00")]
    #[case("Monday 08:00-16:00")]
    #[case("Mon 08:00-25:00")]
    #[case("Mon 24:00-25:00")]
    #[case("Mon 08:00")]
    #[case("Mon 08:00-08:00")]
    fn invalid_windows_are_refused(#[case] text: &str) {
        assert!(windows(&[text], &[], None).is_err());
    }

    #[test]
    fn two_sets_are_open_when_both_are() {
        let day = windows(&["08:00-16:00"], &[], None).unwrap();
        let monday = windows(&["Mon 00:00-24:00"], &["12:00-13:00"], None).unwrap();
        let both = day.clone().and(&monday);
        for (at, open) in [
            ("2026-01-05T09:00:00Z", true),
            ("2026-01-05T07:00:00Z", false),
            ("2026-01-05T12:30:00Z", false),
            ("2026-01-06T09:00:00Z", false),
        ] {
            assert_eq!(both.are_open(at.parse().unwrap()), open, "{at}");
            let recorded = Windows::recorded(&both.declared());
            assert_eq!(recorded.are_open(at.parse().unwrap()), open, "{at}");
        }
        assert_eq!(day.clone().and(&Windows::default()), day);
        assert_eq!(day.clone().and(&day), day);
        // A repeated demand adds nothing, also when it was read from a record.
        let recorded = Windows::recorded(&day.declared());
        for demanded in [&day, &monday, &both, &recorded] {
            assert_eq!(both.clone().and(demanded), both);
        }
        let only = Windows::default().and(&day);
        assert_eq!(only.clone().and(&day), only);
        assert_eq!(Windows::recorded(&[]), Windows::default());
    }

    #[test]
    fn zones_are_named() {
        let error = windows(&["08:00-16:00"], &[], Some("Berlin")).unwrap_err();
        assert!(error.contains("is not a time zone"), "{error}");
    }
}
