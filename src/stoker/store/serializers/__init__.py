"""Python values as bytes and back: one serializer for each kind of value."""
