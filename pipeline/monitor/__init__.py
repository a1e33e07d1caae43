"""What a run writes down: metrics, TensorBoard, trees."""
