//! Rounds, medians, ratios, and one line a figure.

use std::time::Duration;

/// A figure and its floor, measured in turns, so that whatever else the machine does meets both.
#[derive(Default)]
pub struct Pair {
    figure: Vec<f64>,
    floor: Vec<f64>,
}

impl Pair {
    /// One round of both.
    pub fn round(&mut self, figure: f64, floor: f64) {
        self.figure.push(figure);
        self.floor.push(floor);
    }

    /// Prints figures in microseconds as how many there are in a second.
    pub fn print_rates(&self, what: &str, floor: &str) {
        let rates = |times: &[f64]| times.iter().map(|us| 1e6 / us).collect::<Vec<_>>();
        println!("{what}\n    {}   floor {} ({floor})", spread(&rates(&self.figure)), spread(&rates(&self.floor)));
    }

    /// Prints the medians, their spread, and the median of the rounds' ratios.
    pub fn print(&self, what: &str, unit: &str, floor: &str, goal: &str) {
        let ratios = self.figure.iter().zip(&self.floor).map(|(figure, floor)| figure / floor).collect::<Vec<_>>();
        println!(
            "{what}\n    {} {unit}   floor {} {unit} ({floor})   ratio {}   goal {goal}",
            spread(&self.figure),
            spread(&self.floor),
            spread(&ratios)
        );
    }
}

/// `median [least … most]`.
pub fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let digits = if median(&sorted) < 10.0 { 2 } else { 0 };
    let (least, most) = (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(0.0));
    format!("{:.digits$} [{least:.digits$} … {most:.digits$}]", median(&sorted))
}

/// The value at `share` of sorted values: 0.99 is the 99th percentile.
pub fn at(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

fn median(sorted: &[f64]) -> f64 {
    at(sorted, 0.5)
}

/// In microseconds.
pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
