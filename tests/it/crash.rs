//! Real processes, killed and stopped at every point, for every class.
