"""What is swapped for a block: one attribute, what torch prints, attention whose rows are all masked."""
