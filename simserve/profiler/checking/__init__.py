"""What a profile is worth: coverage, outliers, agreement with another pack, expected error. No torch here."""
