//! Simple quotas: an extent is charged to its creator for life.
