//! Orders of events that once broke a rule: crashes, refusals, clocks and people in between.
