//! Transactional actions: effect, charge and record together or not at all (R10).
