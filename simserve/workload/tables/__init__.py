"""Files of rows (CSV, JSON, Parquet) as checked columns."""
